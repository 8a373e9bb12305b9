#include "export/served_form.h"

#include "base/errors.h"
#include "export/export_format.h"

namespace oscar {
namespace {

ServedForm form_of(const ExportFormat& format, const Bundle& bundle) {
  return format.form != nullptr ? format.form(format, bundle) : ServedForm{format.id, bundle, {}};
}

}  // namespace

std::optional<std::string> unsupported(const ExportFormat& format, const Bundle& bundle) {
  if (bundle.latent() && !format.latents) {
    return "the bundle is for latent attention (MLA), which format " + format.id + " does not carry; format vllm does";
  }
  return format.unsupported != nullptr ? format.unsupported(format, bundle) : std::nullopt;
}

ServedForm served_form(const Bundle& bundle, const std::string& format) {
  const ExportFormat* row = find_export_format(format);
  if (row == nullptr) {
    throw UsageError("format '" + format + "' is not one that a bundle is served in; it is one of " +
                     export_format_list());
  }
  if (const auto found = unsupported(*row, bundle)) throw InputError(*found);
  return form_of(*row, bundle);
}

ServedForm lossless_form(const Bundle& bundle) {
  for (const ExportFormat& format : export_formats()) {
    if (unsupported(format, bundle)) continue;
    ServedForm form = form_of(format, bundle);
    if (form.changes.empty()) return form;
  }
  return {kSimulatedForm, bundle, {}};  // small latents, or layers that share another layer's cache
}

std::string changes_text(const ServedForm& form) {
  std::string text;
  for (const std::string& change : form.changes) text += (text.empty() ? "" : "; ") + change;
  return text;
}

}  // namespace oscar
