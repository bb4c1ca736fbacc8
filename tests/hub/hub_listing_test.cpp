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

HubListing listing_of(std::initializer_list<const char*> names) {
  HubListing listing{.commit = kSomeCommit, .files = {}};
  for (const char* name : names) listing.files.push_back({.name = name, .size = 1, .etag = std::string(64, 'a')});
  return listing;
}

std::vector<std::string> needed(std::initializer_list<const char*> names) {
  std::vector<std::string> chosen;
  for (const HubFile& file : model_files(listing_of(names), "org/a")) chosen.push_back(file.name);
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
      "org/a: holds no weights in safetensors at its top level, but a-Q4.gguf, b.gguf, c.gguf and 1 more; headrace "
      "reads no others");
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
