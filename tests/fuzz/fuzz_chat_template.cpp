#include "fuzz/fuzz_target.h"
#include "text/jinja/template.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  return {
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
      "{%- set ns = namespace(found=false, last=messages|length - 1) %}\n{%- for m in messages[::-1] %}\n"
      "{%- if not ns.found and m.role == 'user' and not m.content.startswith('<r>') %}{% set ns.found = true %}"
      "{%- set ns.last = (messages|length - 1) - loop.index0 %}{%- endif %}{%- endfor %}{{ ns.last }}"
      "{%- set u = messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list %}{{ u[-1][1:] }}",
      "{%- macro f(a, b='x') -%}{{ a ~ b|upper if a is string else 3 // 2 }}{%- endmacro -%}{# c #}{{ f('a') }}"
      "{% for k, v in {'a': [1, 2.5], 'b': none}.items() if k != 'c' %}{{ loop.index }}{{ v|tojson(indent=2) }}"
      "{% else %}-{% endfor %}{% set x %} t {% endset %}{{ x.strip().split('t')|join(', ')|replace('a', 'b') }}"};
}

void read_input(std::string_view bytes) {
  const jinja::Template chat{std::string(bytes)};
  jinja::List messages;
  messages.push_back(jinja::Dict{{"role", "user"}, {"content", "caf\xC3\xA9 <r>"}});
  messages.push_back(jinja::Dict{{"role", "assistant"}, {"content", " yes\n"}});
  chat.render({{"messages", messages}, {"tools", jinja::None{}}, {"add_generation_prompt", true}}, std::tm{});
}

}  // namespace oscar::fuzz
