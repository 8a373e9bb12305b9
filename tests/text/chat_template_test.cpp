#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

class Chat : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) { write_file_atomic(folder_ / name, content); }
  std::string render(bool prompt = false) const {
    return ChatTemplate::from_model(folder_.path()).render({{"user", "hi"}}, prompt);
  }
  std::string fault() const {
    try {
      render();
    } catch (const InputError& e) {
      return e.what();
    }
    return "(no InputError)";
  }
  TempDirectory folder_;
};

TEST_F(Chat, SampleModelSpeaksChatMl) {
  const ChatTemplate chat = ChatTemplate::from_model(fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3");
  EXPECT_EQ(chat.kind(), "chatml");
  EXPECT_EQ(chat.render({{"user", "hi"}, {"assistant", "yes"}}, false),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n");
  EXPECT_EQ(chat.render({{"user", "hi"}}, true), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Chat, ModelWithoutTemplateIsAcceptedAndRefusesToRender) {
  EXPECT_EQ(ChatTemplate::from_model(folder_.path()).kind(), "none");
  EXPECT_THAT(fault(), HasSubstr("pass {\"text\": ...} rows"));
  write("tokenizer_config.json", R"({"chat_template": null, "bos_token": null})");
  EXPECT_EQ(ChatTemplate::from_model(folder_.path()).kind(), "none");
}

TEST_F(Chat, OwnFileComesBeforeTheConfiguration) {
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "old"})");
  EXPECT_EQ(render(), "old");
  write("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}\n");
  EXPECT_EQ(render(), "<s>hi</s>");
}

TEST_F(Chat, TakesTheDefaultOfSeveral) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(render(), "d");
}

TEST_F(Chat, NoFunctionGivesTodaysDate) {
  write("chat_template.jinja", "{% if strftime_now is defined %}today{% else %}fixed{% endif %}");
  EXPECT_EQ(render(), "fixed");
  write("chat_template.jinja", "{{ strftime_now('%Y') }}");
  EXPECT_THAT(fault(), HasSubstr("strftime_now"));
}

TEST_F(Chat, SaysWhyATemplateCannotBeRendered) {
  write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_THAT(fault(), HasSubstr("chat_template.jinja is not supported (line 1: found 'include'"));
  write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  EXPECT_THAT(fault(), HasSubstr("it says: roles must alternate"));
  write("chat_template.jinja", "{{ messages|groupby('role') }}");
  EXPECT_THAT(fault(), HasSubstr("the filter 'groupby' is not supported"));
  write("chat_template.jinja", "a\xff");
  EXPECT_THAT(fault(), HasSubstr("not valid UTF-8"));
}

TEST_F(Chat, RefusesDamagedConfigurations) {
  for (const char* config : {"[]", "{", R"({"chat_template": 3})", R"({"chat_template": [1]})", R"({"bos_token": 3})",
                             R"({"bos_token": {"content": 1}})", R"({"chat_template": [{"name": "default"}]})"}) {
    write("tokenizer_config.json", config);
    EXPECT_THROW(ChatTemplate::from_model(folder_.path()), InputError) << config;
  }
}

// A template cannot make the tool run without end, or out of memory or stack.
TEST_F(Chat, HostileTemplatesAreBounded) {
  const auto repeat = [](const std::string& unit, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += unit;
    return text;
  };
  const std::string loops = repeat("{% for i in range(99999) %}", 8) + repeat("{% endfor %}", 8);
  const std::vector<std::string> templates = {
      loops,
      "{{ range(1000000000) }}",
      "{{ range(-9223372036854775807, 9223372036854775807, 1)|length }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ 2 ** 9223372036854775807 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 'x' * 60000000 * 2 }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.self = ns %}",
      "{% set ns = namespace() %}{% set ns.self = [ns] %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{% for i in [1] %}{% if n %}{{ (f(n) + f(n)) }}{% endif %}{% endfor %}{% endmacro %}{{ f(1) }}",
      "{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
      "{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}",
      "{{ " + repeat("not ", 5000) + "1 }}",
      "{{ " + repeat("-", 5000) + "1 }}",
      "{{ 1" + repeat(" + 1", 50000) + " }}",
      "{{ x" + repeat(".a", 50000) + " }}",
      "{{ x" + repeat("|trim", 50000) + " }}",
      "{{ x" + repeat("()", 50000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 5000) + " }}",
      repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000),
      "{% if 1 %}" + repeat("{% else %}", 5000),
  };
  for (const std::string& source : templates) {
    write("chat_template.jinja", source);
    EXPECT_NE(fault(), "(no InputError)") << source.substr(0, 100);
  }
}

}  // namespace
}  // namespace oscar
