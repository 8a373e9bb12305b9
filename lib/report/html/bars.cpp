// KL as sorted dots on a logarithmic scale, for methods of equal bytes.
#include <algorithm>
#include <cmath>

#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {

std::string kl_bars(const VerifyReport& report, std::vector<const MethodReport*> methods, const std::string& caption) {
  std::stable_sort(methods.begin(), methods.end(), [](const MethodReport* a, const MethodReport* b) {
    return a->quality.kl.mean < b->quality.kl.mean;
  });
  double low = INFINITY, high = 0;
  for (const MethodReport* m : methods) {
    const KlMetrics& kl = m->quality.kl;
    const double least = kl.interval && kl.interval->low > 0 ? kl.interval->low : kl.mean;
    low = std::min(low, least);
    high = std::max(high, kl.interval ? std::max(kl.interval->high, kl.mean) : kl.mean);
  }
  const std::optional<double> limit = kl_limit(report);
  if (limit && *limit > 0) low = std::min(low, *limit), high = std::max(high, *limit);
  const DecadeAxis decades = decade_axis(low, high, 0, 100);
  const Axis& axis = decades.axis;
  const auto at = [&](double kl) { return std::clamp(axis.pixel(std::max(kl, axis.low)), 0.0, 100.0); };
  std::string text = "<table class=\"bars\"><caption><span>" + caption + " Dots stand on a logarithmic scale, from " +
                     significant(axis.low, 2) + " to " + significant(axis.high, 2) +
                     " nats; &plusmn; and lines: " + percent(report.bootstrap_level, 0) + "% intervals" +
                     (limit ? "; dashed: the gate, " + significant(*limit, 3) : std::string()) +
                     ".</span></caption><thead><tr><th scope=\"col\">method</th><th scope=\"col\">KL mean</th>"
                     "<th scope=\"col\">&plusmn;</th><th scope=\"col\" class=\"text\">smaller is better</th></tr>"
                     "</thead><tbody>\n";
  for (const MethodReport* m : methods) {
    const KlMetrics& kl = m->quality.kl;
    text += std::string(m->evaluated ? "<tr class=\"evaluated\">" : "<tr>") + "<th scope=\"row\">" +
            "<span class=\"whole\">" + escape(m->id) + "</span>" + escape(series_name(*m).substr(m->id.size())) +
            "</th><td>" + significant(kl.mean, 3) + "</td><td>" + half_width(kl.mean, kl.interval) +
            "</td><td class=\"track\"><div class=\"" + series_class(report, *m) +
            "\"><i style=\"left:" + fixed(at(kl.mean), 2) + "%\"></i>";
    if (limit && *limit > 0) text += "<s style=\"left:" + fixed(at(*limit), 2) + "%\"></s>";
    if (kl.interval) {
      const double from = at(kl.interval->low), to = at(kl.interval->high);
      text += "<b style=\"left:" + fixed(from, 2) + "%;width:" + fixed(to - from, 2) + "%\"></b>";
    }
    text += "</div></td></tr>\n";
  }
  return framed(text + "</tbody></table>", "KL of each method as dots");
}

}  // namespace oscar::html
