#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "base/errors.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ChatInput chat(const std::vector<std::pair<std::string, std::string>>& turns, bool prompt) {
  ChatInput input;
  input.messages = Json::array();
  for (const auto& [role, content] : turns) input.messages.push_back({{"role", role}, {"content", content}});
  input.add_generation_prompt = prompt;
  return input;
}

// Times are bounds for a release build on an idle core. The sanitizers are some ten times slower, and with the counters
// and traced comparisons of libFuzzer, which share their build (Clang), up to thirty times.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OSCAR_TRACED
#endif
#endif
double slowness() {
#if defined(OSCAR_TRACED)
  return 60.0;
#elif defined(__SANITIZE_ADDRESS__)
  return 20.0;
#else
  return 1.0;
#endif
}

class Chat : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) { write_file_atomic(folder_ / name, content); }
  std::string render(bool prompt = false) const {
    return ChatTemplate::from_model(folder_.path()).render(chat({{"user", "hi"}}, prompt));
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
  const ChatTemplate model = ChatTemplate::from_model(fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3");
  EXPECT_EQ(model.kind(), "chatml");
  EXPECT_EQ(model.render(chat({{"user", "hi"}, {"assistant", "yes"}}, false)),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n");
  EXPECT_EQ(model.render(chat({{"user", "hi"}}, true)), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
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

TEST_F(Chat, TellsTheDateItWasGivenOrToday) {
  write("chat_template.jinja", "{{ strftime_now('%d %b %Y, %A') }}");
  ChatTemplate model = ChatTemplate::from_model(folder_.path());
  EXPECT_TRUE(model.asks_for_date());
  model.set_date("2024-02-29");
  EXPECT_EQ(model.render(chat({{"user", "hi"}}, false)), "29 Feb 2024, Thursday");
  EXPECT_EQ(model.date(), "2024-02-29");
  for (const char* wrong : {"2023-02-29", "2024-13-01", "2024-1-1", "today", "", "2024-02-29x", "-024-02-29"}) {
    EXPECT_THROW(model.set_date(wrong), UsageError) << wrong;
  }
  write("chat_template.jinja", "{{ strftime_now('%4000000000Y') }}");
  EXPECT_THAT(fault(), HasSubstr("strftime_now with the field '%4' is not supported"));
  write("chat_template.jinja", "plain");
  EXPECT_FALSE(ChatTemplate::from_model(folder_.path()).asks_for_date());
}

// Known answers of apply_chat_template for what plain messages do not have.
TEST_F(Chat, RendersToolsDocumentsAndVariables) {
  write("chat_template.jinja",
        "{% for t in tools %}{{ t|tojson }}{% endfor %}{{ documents[0].title }}{{ level|default('low') }}"
        "{% for m in messages %}[{{ m.content is defined }}{{ m.tool_calls[0].function.arguments.b }}"
        "{{ m.thinking }}{{ m.reasoning_content }}]{% endfor %}");
  ChatInput input;
  input.messages = parse_json(R"([{"role": "assistant", "content": null, "reasoning": "r",
      "tool_calls": [{"function": {"arguments": {"b": [1, "x", null]}}}]}])",
                              "t");
  input.tools = parse_json(R"([{"z": "\u00e9\n", "a": [1.0, true]}])", "t");
  input.documents = parse_json(R"([{"title": "T"}])", "t");
  const auto render = [&] { return ChatTemplate::from_model(folder_.path()).render(input); };
  EXPECT_EQ(render(), R"({"z": ")"
                      "\xC3\xA9"
                      "\\n\", \"a\": [1.0, true]}Tlow[False[1, 'x', None]rr]");
  input.variables["level"] = "high";
  EXPECT_THAT(render(), HasSubstr("Thigh["));
}

TEST_F(Chat, TokensOfTheModelsOwnHaveNames) {
  write("tokenizer_config.json", R"({"image_token": "<image>", "extra_special_tokens": {"audio_token": "<audio>"},
      "boi_token": {"__type": "AddedToken", "content": "<boi>"}, "add_bos_token": true})");
  write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "video_token": "<video>"})");
  write("chat_template.jinja", "{{ image_token }}{{ audio_token }}{{ boi_token }}{{ bos_token }}{{ video_token }}");
  EXPECT_EQ(render(), "<image><audio><boi><s><video>");
  write("tokenizer_config.json",
        R"({"model_specific_special_tokens": {"image_token": "<image>"},
      "audio_token": {"content": "<no type, so no token>"}})");
  EXPECT_EQ(render(), "<image><s><video>");
  write("tokenizer_config.json", R"({"model_specific_special_tokens": ["<image>"]})");
  EXPECT_THAT(fault(), HasSubstr("'model_specific_special_tokens' is array, expected an object"));
}

TEST_F(Chat, TemplatesByNameInAnObject) {
  write("tokenizer_config.json", R"({"chat_template": {"default": "the default", "tool_use": "with tools"}})");
  EXPECT_EQ(render(), "the default");
  write("tokenizer_config.json", R"({"chat_template": {"default": 7}})");
  EXPECT_THAT(fault(), HasSubstr("'default' is number"));
}

TEST_F(Chat, VariablesThatATemplateMentions) {
  write("chat_template.jinja", "{{ messages[0].content }}{% if enable_thinking %}{{ tools_in }}{% endif %}");
  const ChatTemplate chat = ChatTemplate::from_model(folder_.path());
  for (const char* known : {"messages", "enable_thinking", "tools_in"}) EXPECT_TRUE(chat.names(known)) << known;
  for (const char* other : {"tools", "thinking", "enable", "in_", "x"}) EXPECT_FALSE(chat.names(other)) << other;
}

TEST_F(Chat, TemplateOfAProcessor) {
  write("chat_template.json", R"({"chat_template": "of the processor"})");
  EXPECT_EQ(render(), "of the processor");
  write("tokenizer_config.json", R"({"chat_template": "of the tokenizer"})");
  EXPECT_EQ(render(), "of the tokenizer");
}

TEST_F(Chat, DictionariesMayHaveNumbersAsKeys) {
  write("chat_template.jinja",
        "{% set d = {0: 'a', 512: 'b', -3: 'c', '512': 'text', 0: 'last'} %}{{ d[512] }}{{ d['512'] }}{{ d[0] }}"
        "{{ d.get(-3) }}{{ d.get(7, 'no') }}{{ 512 in d }}{{ 3 in d }}{{ d[512.0] }}{{ d }}{{ d.keys()|list }}"
        "{% for k, v in {9: 1, 10: 2, 2: 3}|dictsort %} {{ k + 1 }}{{ v }}{% endfor %}{{ {1: 2}|tojson }}{{ d[9] }}");
  EXPECT_EQ(render(),
            "btextlastcnoTrueFalseb{0: 'last', 512: 'b', -3: 'c', '512': 'text'}[0, 512, -3, '512'] 33 101 112"
            "{\"1\": 2}");
}

TEST_F(Chat, ServersDecodeArgumentsAndJoinParts) {
  write("chat_template.jinja",
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments.x }}{% endfor %}{% "
        "endfor %}");
  ChatInput input;
  input.messages =
      parse_json(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 3}"}},
      {"function": {"name": "g", "arguments": ""}}]}])",
                 "t");
  ChatTemplate model = ChatTemplate::from_model(folder_.path());
  EXPECT_THAT(model.render(input), HasSubstr("[{'type': 'text', 'text': 'a'}"));
  model.set_rendering(Rendering::kServer);
  EXPECT_EQ(model.render(input), "a\nbc3");
  // Arguments that are no object are lost at a server, too, which is said.
  std::vector<std::string> unread;
  input.messages[1]["tool_calls"][0]["function"]["arguments"] = "{x";
  EXPECT_EQ(model.render(input, &unread), "a\nbc");
  EXPECT_THAT(unread, ElementsAre("arguments"));
  input.messages[1]["tool_calls"][0]["function"]["arguments"] = "{\"x\": 123456789012345678901}";
  EXPECT_THROW(model.render(input), InputError);
  // A call without text, as every server logs it: most templates add its content to a text.
  write("chat_template.jinja", "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}");
  ChatTemplate adding = ChatTemplate::from_model(folder_.path());
  const Json kept = input.messages;
  input.messages =
      parse_json(R"([{"role": "assistant", "content": null, "tool_calls": []}, {"role": "assistant"}])", "t");
  EXPECT_THROW(adding.render(input), InputError) << "transformers refuses it";
  adding.set_rendering(Rendering::kServer);
  EXPECT_EQ(adding.render(input), "[][]");
  input.messages = kept;
  // A template that goes through parts gets them.
  write("chat_template.jinja", "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}");
  ChatTemplate knowing = ChatTemplate::from_model(folder_.path());
  knowing.set_rendering(Rendering::kServer);
  input.messages.erase(1);
  EXPECT_EQ(knowing.render(input), "<a><b>");
}

// Images become marks where a template goes through parts, and are named; parts that servers refuse are refused.
TEST_F(Chat, PartsThatAreNoText) {
  ChatInput input;
  input.messages = parse_json(
      R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"text": "a"}, {"video_url": "x"}, "b"]}])",
      "t");
  const auto read = [&](const char* part) {
    write("chat_template.jinja", std::string("{% for m in messages %}") + part + "{% endfor %}");
    ChatTemplate model = ChatTemplate::from_model(folder_.path());
    model.set_rendering(Rendering::kServer);
    std::vector<std::string> unread;
    std::string text = model.render(input, &unread);
    EXPECT_THAT(unread, ElementsAre("image_url", "video_url"));
    return text;
  };
  EXPECT_EQ(read("{{ m.content }}"), "a\nb");
  EXPECT_EQ(read("{% for p in m.content %}<{{ p.text or p.type }}>{% endfor %}"), "<image><a><video><b>");
  input.messages[0]["content"][0] = {{"type", "file"}, {"file", "x"}};
  EXPECT_THROW(read("{{ m.content }}"), InputError);
  input.messages[0]["content"][0] = {{"type", "text"}, {"text", 3}};
  EXPECT_THROW(read("{{ m.content }}"), InputError);
}

TEST_F(Chat, SaysWhyATemplateCannotBeRendered) {
  write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_THAT(fault(), HasSubstr("chat_template.jinja is not supported (line 1: found 'include'"));
  write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  EXPECT_THAT(fault(), HasSubstr("it says: roles must alternate"));
  write("chat_template.jinja", "{{ messages|urlize('role') }}");
  EXPECT_THAT(fault(), HasSubstr("the filter 'urlize' is not supported"));
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
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      "{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns.self }}",
      "{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns|tojson }}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = namespace(x=[ns.x]) %}{% endfor %}{{ ns "
      "}}",
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
  const auto worst = [](const std::string& source) {  // each took minutes, or all memory, before work was counted
    return "{% set ns = namespace(x='a' * 16000000, y='a' * 8000000 + 'b') %}{% for i in range(99999) %}" + source +
           "{% endfor %}";
  };
  std::string many_keys = "{{ {", many_names;
  for (int i = 0; i < 60000; ++i) {
    many_keys += "'" + std::to_string(i) + "':1,";
    if (i < 40000) many_names += "{%set v" + std::to_string(i) + "=1%}";
  }
  const std::vector<std::string> slow = {
      worst("{% set y = ns.x[i] %}"),
      worst("{% set y = ns.x[1:] %}"),
      worst("{% set y = ns.x.find(ns.y) %}"),
      worst("{% set y = ns.x.rfind(ns.y) %}"),
      worst("{% set y = ns.x.replace('a', '') %}"),
      worst("{% set y = ns.x.split('a') %}"),
      worst("{% set y = ns.x.strip(ns.x) %}"),
      worst("{% for j in range(99999) %}{% set y = ns.x %}{% endfor %}"),
      worst("{% set y = range(99999) %}"),
      "{% set ns = namespace(x=['ab']) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}" +
          repeat("{{ ns.x|tojson }}", 2),
      "{% set ns = namespace(x=['ab'], y=['ab']) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=['ab']) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      many_keys + "}['1'] }}{% for i in range(99999) %}{{ m }}{% endfor %}",
      many_names + "{% for i in range(99999) %}{% set y = missing %}{% endfor %}",
      "{{ 1" + std::string(400, '0') + ".0 }}",
      "{{ 1" + std::string(400, '0') + " }}",
  };
  for (const std::string& source : slow) {
    write("chat_template.jinja", source);
    const std::clock_t begin = std::clock();  // CPU time: a busy machine does not matter
    EXPECT_THAT(fault(), AllOf(HasSubstr("chat_template.jinja"), Not(HasSubstr("stod")))) << source.substr(0, 200);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 5.0 * slowness()) << source.substr(0, 200);
  }
  for (const std::string& source : templates) {
    write("chat_template.jinja", source);
    EXPECT_NE(fault(), "(no InputError)") << source.substr(0, 100);
  }
}

}  // namespace
}  // namespace oscar
