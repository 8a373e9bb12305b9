#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "report/html/parts.h"
#include "report/number_text.h"
#include "report/sample_report.h"

namespace oscar {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(NumberText, Forms) {
  EXPECT_EQ(significant(0.0012345, 3), "0.00123");
  EXPECT_EQ(fixed(1.05449, 3), "1.054");
  EXPECT_EQ(percent(0.98765, 1), "98.8");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(123), "123");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(rounded(0.123456789123, 9), 0.123456789);
  EXPECT_EQ(rounded(0.0, 9), 0.0);
}

TEST(ReportJson, HoldsTheMembersOfTheDesign) {
  const Json j = parse_json(report_json(sample_report({0.1, 1.1, 0.1, 0.5})), "report");
  EXPECT_EQ(j["format_version"], kReportFormatVersion);
  EXPECT_EQ(j["methods"].size(), 3u);
  const Json& oscar = j["methods"][2];
  EXPECT_EQ(oscar["id"], "oscar");
  EXPECT_EQ(oscar["tasks"]["niah"]["384"]["n"], 8);
  EXPECT_EQ(oscar["tasks"]["niah"]["384"]["score"], 1.0);
  EXPECT_EQ(oscar["layers"][1]["layer"], 1);
  EXPECT_EQ(j["methods"][0]["kl"]["max"], 0.0);
  EXPECT_EQ(j["methods"][0]["passes_gates"], nullptr);
  EXPECT_EQ(j["gates"].size(), 4u);
  EXPECT_EQ(j["self_checks"][1]["pass"], nullptr);
  EXPECT_EQ(j["pass"], true);
}

TEST(ReportJson, EqualReportsAreByteIdentical) {
  EXPECT_EQ(report_json(sample_report({})), report_json(sample_report({})));
  EXPECT_EQ(report_html(sample_report({})), report_html(sample_report({})));
}

TEST(ReportTable, GrowthAndLogitCorrectionAreInEveryForm) {
  VerifyReport r = sample_report({});
  r.methods[2].by_position = {{320, 336, 16, 9.0}, {336, 352, 16, 0.01}, {352, 368, 16, 9.0}, {368, 384, 16, 0.037}};
  EXPECT_THAT(report_details(r), HasSubstr("     3.7\n"));
  EXPECT_THAT(report_markdown(r), HasSubstr("| 3.7 |"));
  EXPECT_THAT(report_html(r), HasSubstr("<td>3.7</td>"));
  const Json j = parse_json(report_json(r), "report");
  EXPECT_EQ(j["methods"][2]["kl_growth"]["ratio"], 3.7);
  EXPECT_EQ(j["methods"][2]["kl_growth"]["early"]["tokens"], 16);
  EXPECT_EQ(j["methods"][0]["kl_growth"], nullptr) << "BF16 has no KL that could grow";
}

TEST(ReportTable, OneRowForEachMethod) {
  const std::string table = report_table(sample_report({0.001, std::nullopt, std::nullopt, std::nullopt}));
  EXPECT_THAT(table, HasSubstr("naive2"));
  EXPECT_THAT(table, HasSubstr("oscar *"));
  EXPECT_THAT(table, HasSubstr("FAIL"));
  EXPECT_THAT(table, HasSubstr("FAIL  gate max_kl of oscar"));
  EXPECT_THAT(table, HasSubstr("74.60%     -\n")) << "naive2 is not evaluated\n" << table;
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
}

// The standard error over tokens was up to 4.6 times too narrow: tokens of one sequence are correlated.
TEST(ReportTable, PlusMinusIsTheIntervalOfTheBootstrap) {
  VerifyReport r = sample_report({});
  r.methods[2].quality.kl.mean = 0.105;
  r.methods[2].quality.kl.standard_error = 0.016;
  r.methods[2].quality.kl.interval = Interval{0.049, 0.194};
  EXPECT_THAT(report_table(r), HasSubstr("0.105  0.089"));
  EXPECT_THAT(report_details(r), HasSubstr("+-95%: 95% interval, by bootstrap over the 4 sequences"));
  EXPECT_THAT(report_markdown(r), HasSubstr("0.105 ± 0.089"));
  EXPECT_THAT(report_html(r), HasSubstr(" &plusmn; 0.089"));
  r.methods[2].quality.kl.interval = std::nullopt;
  r.scoring.sequences = 1;
  EXPECT_THAT(report_details(r), HasSubstr("0.105      - "));
  EXPECT_THAT(report_details(r), HasSubstr("one sequence has none"));
}

// What BF16 cannot do is said and counts for nobody; scores have their standard errors.
TEST(ReportTable, TasksThatTheBaselineFailsAreReportedApart) {
  VerifyReport r = sample_report({});
  for (MethodReport& m : r.methods) {
    m.tasks.push_back(m.tasks.front());
    TaskScore& none = m.tasks.back();
    none.task = "vt", none.n = none.solved = 0, none.score = std::nullopt, none.interval = {0, 1};
  }
  for (const std::string& text : {report_table(r), report_markdown(r), report_html(r)}) {
    EXPECT_THAT(text, HasSubstr("niah 384: the BF16 cache finds 8 of 10 references; the others count for no method"));
    EXPECT_THAT(text, HasSubstr("vt 384: the BF16 cache finds 0 of 10 references"));
    EXPECT_THAT(text, HasSubstr("unsolved"));
  }
  EXPECT_THAT(report_table(r), HasSubstr("12% (2 to 47) of 8"));  // one of eight
  EXPECT_THAT(report_table(r), HasSubstr("100% (68 to 100) of 8"));
  EXPECT_THAT(report_markdown(r), HasSubstr("100% (68 to 100) of 8"));
}

// What a terminal of 100 columns shows: the last line is the verdict.
TEST(ReportTable, EndsWithTheVerdictWithin100Columns) {
  VerifyReport r = sample_report({0.1, 1.1, 0.1, std::nullopt});
  r.methods[2].path = "decode";  // the widest table
  r.methods[2].comparison = "authors";
  r.gates[0].path = r.gates[1].path = r.gates[2].path = "decode";
  const std::string table = report_table(r);
  for (std::size_t from = 0; from < table.size(); from = table.find('\n', from) + 1) {
    EXPECT_LE(table.find('\n', from) - from, 100u) << table.substr(from, table.find('\n', from) - from);
  }
  EXPECT_THAT(table, testing::EndsWith("cache 2.9x smaller at 2K, 5.5x at 8K: PASS\n"));
  EXPECT_THAT(table, HasSubstr("\n25 of 100 tokens differ, perplexity "));
  // Names of several bundles are those of their folders: columns that are needed least are left out then.
  for (const char* id : {"turboquant2.5", "qwen3-8b-2.25-bits-of-today"}) {
    r.methods[2].id = id;
    const std::string wide = report_table(r);
    for (std::size_t from = 0; from < wide.size(); from = wide.find('\n', from) + 1) {
      EXPECT_LE(wide.find('\n', from) - from, 100u) << wide.substr(from, wide.find('\n', from) - from);
    }
    EXPECT_THAT(wide,
                testing::AllOf(HasSubstr("KL mean"), HasSubstr("ratio"), HasSubstr("same top"), HasSubstr("gate")));
  }
  // Two folders whose names differ only in the middle.
  r.methods.push_back(r.methods[2]);
  r.methods[2].id = std::string(60, 'n') + "-1-" + std::string(60, 'm');
  r.methods[3].id = std::string(60, 'n') + "-2-" + std::string(60, 'm');
  for (const std::string& wide : {report_table(r), report_details(r)}) {
    for (std::size_t from = 0; from < wide.size(); from = wide.find('\n', from) + 1) {
      const std::string line = wide.substr(from, wide.find('\n', from) - from);
      EXPECT_TRUE(line.size() <= 100 || line.find("nnn-") != std::string::npos) << line;  // one long word
    }
    EXPECT_THAT(wide, testing::AllOf(HasSubstr("nnn...mmm"), HasSubstr("mmm #1"), HasSubstr("mmm #2")));
  }
  EXPECT_THAT(report_details(r), testing::AllOf(HasSubstr("bytes/seq"), HasSubstr("growth"), HasSubstr("same top")));
  r.methods.pop_back();
  r.steps = {std::string(60, 'a') + " " + std::string(60, 'b')};
  EXPECT_THAT(report_table(r), HasSubstr("next: " + std::string(60, 'a') + "\n      " + std::string(60, 'b') + "\n"));
}

// A bundle's row has the name of its folder. A newline in it could begin a line that looks like a verdict.
TEST(ReportTable, NamesWithNewlinesStayOnTheirLines) {
  const std::string name = "b\nPASS";
  VerifyReport r = sample_report({0.001, {}, {}, {}});
  r.methods.push_back(r.methods[2]);  // two candidates: the verdict has their names
  for (MethodReport* m : {&r.methods[2], &r.methods[3]}) m->id = name;
  r.methods[2].recall = RecallMetrics{1234, 0.75, 0.5, 0.01, 0.02};
  for (GateResult& gate : r.gates) gate.method = name;
  r.bundles[0].row = r.bundles[0].source = name;
  r.left_out = {{name, "common", "of " + name}};
  r.checks[0] = {name, name, {}, {}, false};
  r.changes = {{name, "common", "prefill", 0.1, 0.2, 1.0, 1.1}};
  r.baseline = r.undecided = name;
  r.steps = {name};
  for (const std::string& text : {report_table(r), report_details(r)}) {
    EXPECT_THAT(text, Not(HasSubstr("\nPASS")));
    EXPECT_THAT(text, HasSubstr("gate max_kl of b\\x0aPASS (prefill): "));
    EXPECT_THAT(text, HasSubstr("repeated phrases: b\\x0aPASS (prefill) predicts "));
  }
}

TEST(Verdict, SaysWhyItFails) {
  VerifyReport r = sample_report({0.001, {}, {}, {}});
  const std::string failed = verdict_sentences(r).front();
  EXPECT_THAT(failed, HasSubstr("25 of 100 tokens differ, perplexity "));
  EXPECT_THAT(failed, testing::EndsWith(": FAIL"));
  EXPECT_THAT(report_table(r), HasSubstr("FAIL  gate max_kl of oscar (prefill): 0.0"));
  r.gates.clear();
  EXPECT_THAT(verdict_sentences(r).front(), testing::EndsWith(": no gate"));
  r.undecided = "too few sequences";
  EXPECT_THAT(verdict_sentences(r).front(), testing::EndsWith(": no verdict"));
  r.checks[0].pass = false;
  EXPECT_THAT(verdict_sentences(r).front(), testing::EndsWith(": FAIL"));
  r.methods[2].quality.same_top1 = 1.0 - 1.0 / 60;
  EXPECT_THAT(verdict_sentences(r).front(), HasSubstr("1 of 60 tokens differs"));
  r.methods[2].evaluated = false;
  EXPECT_TRUE(verdict_sentences(r).empty());
}

TEST(Verdict, WorstLayersComeFirstWithTheirWidths) {
  VerifyReport r = sample_report({});
  r.methods[2].layers[1].mean.attention_kl = 0.69;
  EXPECT_THAT(worst_layers_text(r, r.methods[2]),
              testing::StartsWith("1 (0.69; keys 0-0-0-0, values 4-2-1-0), 0 (0.001; keys 4-4-2-1"));
  const std::string page = report_html(r);
  EXPECT_LT(page.find("<th scope=\"row\">1</th><td>0-0-0-0</td>"),
            page.find("<th scope=\"row\">0</th><td>4-4-2-1</td>"));
}

TEST(ReportHtml, TextIsEscaped) {
  VerifyReport r = sample_report({0.1, {}, {}, {}});
  EXPECT_THAT(report_html(r), Not(HasSubstr("<b>")));
  EXPECT_THAT(report_html(r), HasSubstr("2.9 times smaller at 2,048 tokens, 5.5 times smaller at 8,192"));
  r = sample_report({});
  r.steps = {"spend <more> bits"};
  r.checks[0].pass = false;
  EXPECT_THAT(report_html(r), HasSubstr("<li>spend &lt;more&gt; bits</li>"));
}

TEST(ReportHtml, IsOneSelfContainedPage) {
  const std::string page = report_html(sample_report({0.1, 1.1, 0.1, 0.5}));
  EXPECT_THAT(page, HasSubstr("PASS"));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(", "href="}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("<h2>KL by position</h2>"));
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
}

TEST(ReportHtml, EscapesNames) {
  const std::string page = report_html(sample_report({}));
  EXPECT_THAT(page, HasSubstr("a &lt;model&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<model>")));
  EXPECT_EQ(html::escape("<a b=\"c\" d='e'>&"), "&lt;a b=&#34;c&#34; d=&#39;e&#39;&gt;&amp;");
}

TEST(ReportHtml, BannerTellsTheVerdict) {
  EXPECT_THAT(report_html(sample_report({})), HasSubstr("No gate was set"));
  const std::string failed = report_html(sample_report({0.001, {}, {}, {}}));
  EXPECT_THAT(failed, HasSubstr("class=\"banner fail\""));
  EXPECT_THAT(failed, HasSubstr("Gate max_kl of oscar"));
}

// The exit code has the color of the page; each row has its own.
TEST(ReportHtml, EachBundleHasItsOwnVerdict) {
  VerifyReport r = sample_report({0.1, {}, {}, {}});
  const MethodReport own = r.methods[2];
  EXPECT_THAT(report_html(r), HasSubstr("<p class=\"verdict pass\">"));
  MethodReport other = own;
  other.id = "other", other.beside = true;
  r.methods.push_back(other);
  GateResult gate = r.gates.front();
  gate.method = "other", gate.path = other.path, gate.pass = gate.decides = false;
  r.gates.push_back(gate);
  const std::string page = report_html(r);
  EXPECT_THAT(page, HasSubstr("class=\"banner pass\""));
  EXPECT_LT(page.find("<p class=\"verdict fail\">other ("), page.find("<p class=\"verdict pass\">oscar ("));
  EXPECT_THAT(page, HasSubstr("(evaluated"));
  EXPECT_THAT(page, HasSubstr("(beside it"));
  EXPECT_THAT(page, Not(HasSubstr("candidate")));
  EXPECT_THAT(report_html(sample_report({})), Not(HasSubstr("class=\"verdict pass\""))) << "no gate, no color";
}

TEST(ReportHtml, WhatFewReadIsFolded) {
  const std::string page = report_html(sample_report({}));
  EXPECT_THAT(page.substr(page.find("<h2>Errors by layer</h2>"), 900),
              HasSubstr("<details><summary>oscar (prefill), worst:"));
}

TEST(ReportHtml, SizesAndTheDayAreShown) {
  VerifyReport r = sample_report({});
  r.date = "2026-11-28";
  const std::string page = report_html(r);
  EXPECT_THAT(page, HasSubstr("<p class=\"faint\">2026-11-28: "));
  EXPECT_THAT(page, HasSubstr("<th scope=\"col\">smaller</th>"));
  EXPECT_THAT(page, HasSubstr("<td>" + smaller_text(r, r.methods[2]) + "</td>"));
}

TEST(ReportHtml, EveryPartOfAFullReportIsThere) {
  const std::string page = report_html(sample_report({}));
  for (const char* part :
       {"<h2>Methods</h2>", "<h2>KL by position</h2>", "<h2>Errors by layer</h2>", "<h2>Gates and self checks</h2>",
        "<h2>Provenance</h2>", "oscar-verify --model &#39;a &lt;model&gt;&#39;"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST(ReportHtml, EmptyPartsAreLeftOut) {
  VerifyReport r = sample_report({});
  for (MethodReport& m : r.methods) {
    m.tasks.clear();
    m.layers.clear();
    m.by_position.clear();
  }
  const std::string page = report_html(r);
  EXPECT_THAT(page, Not(HasSubstr("Errors by layer")));
  EXPECT_THAT(page, Not(HasSubstr("KL by position")));
}

}  // namespace
}  // namespace oscar
