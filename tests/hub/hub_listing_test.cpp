#include "headrace/hub/hub_listing.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "headrace/hub/certificates.h"
#include "headrace/hub/content_hash.h"
#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using testing_support::refusal_of;

const std::string kSomeCommit(40, 'c');

HubListing listing_of(const std::vector<std::string>& names) {
  HubListing listing{.commit = kSomeCommit, .files = {}};
  for (const std::string& name : names)
    listing.files.push_back({.name = name, .size = 1, .etag = std::string(64, 'a')});
  return listing;
}

std::vector<std::string> needed(const std::vector<std::string>& names, const std::string& gguf = "") {
  std::vector<std::string> chosen;
  for (const HubFile& file : model_files(listing_of(names), {.repository = "org/a", .gguf = gguf}))
    chosen.push_back(file.name);
  return chosen;
}

using Names = std::vector<std::string>;

TEST(ContentHash, IsGitsForSmallFilesAndSha256ForLargeOnes) {
  ContentHash git(std::string(40, '0'), 6);  // git hash-object of "hello\n"
  git.add("hel");
  git.add("lo\n");
  EXPECT_EQ(git.digits(), "ce013625030ba8dba906f756967f9e9ca394464a");
  ContentHash sha256(std::string(64, '0'), 3);  // FIPS 180-2, example 1
  sha256.add("abc");
  EXPECT_EQ(sha256.digits(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_FALSE(ContentHash::is_hash("../../../../etc/passwd"));
}

TEST(HubListing, IsReadAsTheHubWritesIt) {
  const HubListing listing = parse_hub_listing(R"({"id": "org/a", "sha": ")" + kSomeCommit + R"(", "siblings": [
        {"rfilename": "config.json", "size": 12, "blobId": "1111111111111111111111111111111111111111"},
        {"rfilename": "model.safetensors", "size": 134, "blobId": "2222222222222222222222222222222222222222",
         "lfs": {"sha256": "33", "size": 4000000000, "pointerSize": 134}}]})",
                                               "hub");
  EXPECT_EQ(listing.commit, kSomeCommit);
  ASSERT_EQ(listing.files.size(), 2u);
  EXPECT_EQ(listing.files[0].etag, std::string(40, '1'));
  EXPECT_EQ(listing.files[0].size, 12);
  EXPECT_EQ(listing.files[1].etag, "33");
  EXPECT_EQ(listing.files[1].size, 4000000000);
}

TEST(HubListing, RefusesNamesThatLeadOutOfTheSnapshot) {
  for (const char* name : {"../x.json", "/etc/x.json", "a/../../x.json", "a\\\\x.json", "x\\u0000.json", "",
                           "a//b.json", "./x.json", "x\\n.json", ".."}) {
    const auto refusal = refusal_of([name] {
      parse_hub_listing(R"({"sha": ")" + kSomeCommit + R"(", "siblings": [{"rfilename": ")" + name + R"("}]})", "hub");
    });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile) << name;
    EXPECT_NE(refusal.sentence.find("no name of a file in a folder"), std::string::npos) << refusal.sentence;
  }
}

TEST(HubListing, RefusesWhatIsNoListing) {
  for (const char* json : {"", "[]", "{}", R"({"sha": "../..", "siblings": []})", R"({"sha": 1, "siblings": []})"}) {
    EXPECT_EQ(refusal_of([json] { parse_hub_listing(json, "hub"); }).code, ErrorCode::kModelFile) << json;
  }
}

TEST(ModelFiles, AreThoseThatAModelNeeds) {
  EXPECT_EQ(needed({"README.md", "config.json", "model.safetensors", "pytorch_model.bin", "model.gguf",
                    "onnx/model.onnx", "onnx/config.json", "tokenizer.json", "merges.txt", "vocab.txt",
                    "requirements.txt", "chat_template.jinja", "additional_chat_templates/tools.jinja",
                    "model.fp16.safetensors", "modeling_a.py", "pytorch_model.bin.index.json", "tokenizer.model"}),
            (Names{"additional_chat_templates/tools.jinja", "chat_template.jinja", "config.json", "merges.txt",
                   "model.safetensors", "tokenizer.json", "tokenizer.model", "vocab.txt"}));
}

TEST(ModelFiles, AreShardsWhereAnIndexNamesThem) {
  EXPECT_EQ(
      needed({"consolidated.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
              "model.safetensors.index.json"}),
      (Names{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(needed({"model.safetensors-00001-of-00001.safetensors", "model.safetensors.index.json"}),
            (Names{"model.safetensors-00001-of-00001.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(needed({"adapter_config.json", "adapter_model.safetensors"}),
            (Names{"adapter_config.json", "adapter_model.safetensors"}));
}

TEST(ModelFiles, SayWhichWeightsAreThereInstead) {
  const auto refusal = refusal_of([] { needed({"config.json", "a-Q4.gguf", "b.gguf", "c.gguf", "d.gguf"}); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_EQ(
      refusal.sentence,
      "org/a: holds no weights in safetensors at its top level, but the GGUF models a-Q4, b, c, d; org/a:Q4 names "
      "one of them");
  EXPECT_EQ(refusal_of([] {
              needed({"config.json", "a.bin", "b.pt", "c.h5", "d.bin"});
            }).sentence,
            "org/a: holds no weights in safetensors at its top level, but a.bin, b.pt, c.h5 and 1 more; headrace reads "
            "no others");
}

TEST(ModelFiles, InGgufAreThoseOfOneModel) {
  const std::vector<std::string> all = {"README.md",
                                        "a-Q4_K_M.gguf",
                                        "a-Q4_K.gguf",
                                        "a-UD-Q4_K_XL.gguf",
                                        "a-Q4_K_XL.gguf",
                                        "mmproj-a-F16.gguf",
                                        "a-F16.gguf",
                                        "config.json",
                                        "BF16/a-BF16-00002-of-00002.gguf",
                                        "BF16/a-BF16-00001-of-00002.gguf",
                                        "q2/a.gguf",
                                        "a.IQ1_S.gguf",
                                        "imatrix.gguf"};
  EXPECT_EQ(needed(all, "Q4_K_M"), Names{"a-Q4_K_M.gguf"});
  EXPECT_EQ(needed(all, "q4_k"), Names{"a-Q4_K.gguf"}) << "a whole word, in any case";
  EXPECT_EQ(needed(all, "UD-Q4_K_XL"), Names{"a-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(needed(all, "a-Q4_K_XL"), Names{"a-Q4_K_XL.gguf"});
  EXPECT_EQ(needed(all, "F16"), Names{"a-F16.gguf"}) << "a projector is no model";
  EXPECT_EQ(needed(all, "iq1_s"), Names{"a.IQ1_S.gguf"});
  EXPECT_EQ(needed(all, "Q2"), Names{"q2/a.gguf"}) << "by its folder";
  EXPECT_EQ(needed(all, "BF16"), (Names{"BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf"}));
  EXPECT_EQ(refusal_of([&] { needed(all, "Q4_K_XL"); }).sentence,
            "org/a: 'Q4_K_XL' may be a-Q4_K_XL, a-UD-Q4_K_XL; name one of them");
  EXPECT_EQ(refusal_of([&] { needed(all, "Q9"); }).sentence,
            "org/a: has no GGUF file named 'Q9'; there are a, a-BF16, a-F16, a-Q4_K, a-Q4_K_M, a-Q4_K_XL, "
            "a-UD-Q4_K_XL, a.IQ1_S");
  EXPECT_EQ(refusal_of([] { needed({"model.safetensors"}, "Q9"); }).sentence, "org/a: has no GGUF file");
}

TEST(HubNames, MayNameAModelInGguf) {
  const auto read = [](std::string_view text) {
    const auto name = parse_hub_name(text);
    return name ? name->repository + " " + name->gguf + " " + name->revision : "none";
  };
  EXPECT_EQ(read("org/a:Q4_K_M"), "org/a Q4_K_M main");
  EXPECT_EQ(read("org/a:Q4_K_M@v1"), "org/a Q4_K_M v1");
  EXPECT_EQ(read("org/a@v1"), "org/a  v1");
  for (const char* none : {"org/a:", "org/a:../b", "org/a:a/b", "org/a:Q4:Q5", "org/a@v1:Q4"})
    EXPECT_EQ(read(none), "none") << none;
  EXPECT_EQ(text_of({.repository = "org/a", .revision = "v1", .gguf = "Q8_0"}), "org/a:Q8_0@v1");
}

using CertificateBundle = testing_support::FakeRoot;

TEST_F(CertificateBundle, IsWhereTheDistributionKeepsIt) {
  EXPECT_EQ(certificate_bundle(root_), "");
  std::filesystem::create_directories(root_ / "etc/ssl/certs/ca-certificates.crt");  // no file
  EXPECT_EQ(certificate_bundle(root_), "");
  write("etc/pki/tls/certs/ca-bundle.crt", "x");
  EXPECT_EQ(certificate_bundle(root_), (root_ / "etc/pki/tls/certs/ca-bundle.crt").string());
  write("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "x");
  EXPECT_EQ(certificate_bundle(root_), (root_ / "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem").string());
}

}  // namespace
}  // namespace headrace
