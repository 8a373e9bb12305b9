// The registry of methods: what every row must say, and which rows the commands and bundles find.
#include "registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/errors.h"
#include "support/message_of.h"

namespace oscar {
namespace {

using testing::ElementsAre;

TEST(Registry, RowsSayWhatListsAndReportsNeed) {
  std::set<std::string> ids;
  for (const MethodRow& row : method_registry()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.id << " stands there twice";
    EXPECT_FALSE(row.source.empty()) << row.id;
    EXPECT_EQ(row.listed, !row.summary.empty()) << row.id;
    EXPECT_TRUE(row.listed || row.fitted()) << row.id << " can be neither measured nor fitted";
    EXPECT_FALSE(row.by_default && row.needs_bundle()) << row.id;
    EXPECT_TRUE(!row.allocates_bits || row.metric_aware()) << row.id;
    EXPECT_EQ(find_method(row.id), &row);
    EXPECT_EQ(find_method_spec(row.id), row.description ? &*row.description : nullptr);
  }
}

TEST(Registry, EveryRoleHasOneRow) {
  for (const MethodRole role : {MethodRole::kBaseline, MethodRole::kNegativeControl, MethodRole::kReference}) {
    int count = 0;
    for (const MethodRow& row : method_registry()) count += row.role == role ? 1 : 0;
    EXPECT_EQ(count, 1);
    EXPECT_EQ(method_with(role).role, role);
  }
  int preferred = 0;
  for (const MethodRow& row : method_registry()) preferred += row.preferred && row.fitted() ? 1 : 0;
  EXPECT_EQ(preferred, 1);
  EXPECT_FALSE(method_with(MethodRole::kBaseline).quantized);
  EXPECT_TRUE(method_with(MethodRole::kReference).needs_bundle());
  EXPECT_FALSE(has_role("no such method", MethodRole::kBaseline));
}

TEST(Registry, TheCommandsFindTheirRows) {
  EXPECT_THAT(default_methods(), ElementsAre("bf16", "naive2", "hadamard2"));
  EXPECT_EQ(preferred_method().id, "waterfill");
  EXPECT_TRUE(fitted_method("waterfill").allocates_bits);
  EXPECT_TRUE(fitted_method("hadamard").data_free());
  EXPECT_FALSE(fitted_method("oscar").data_free());
  for (const char* id : {"naive2", "kivi2", "nothing"}) {
    EXPECT_NE(message_of<UsageError>([&] { fitted_method(id); }).find("oscar, hadamard, identity, balanced, waterfill"),
              std::string::npos)
        << id;
  }
}

TEST(Registry, BundlesRunUnderTheirMethodOrTheReference) {
  EXPECT_EQ(id_of_bundle("balanced"), "balanced");
  EXPECT_EQ(id_of_bundle(kPublishedMethod), "oscar");
  EXPECT_TRUE(runs_bundle("waterfill", "waterfill"));
  EXPECT_TRUE(runs_bundle("oscar", kPublishedMethod));
  EXPECT_TRUE(runs_bundle("oscar", "oscar-of-somebody"));
  EXPECT_FALSE(runs_bundle("oscar", "balanced"));
  EXPECT_FALSE(runs_bundle("balanced", kPublishedMethod));
  EXPECT_FALSE(runs_bundle("balanced", "balanced-of-somebody"));
}

TEST(Registry, PagesFollowFromTheDescription) {
  EXPECT_TRUE(find_method("bf16")->paged());
  EXPECT_FALSE(find_method("turboquant2.5")->paged());
  EXPECT_TRUE(find_method("kivi2")->two_bit());
  EXPECT_FALSE(find_method("q4_0")->two_bit());
}

}  // namespace
}  // namespace oscar
