// What broken downloads and other programs' files are told to be, by their first bytes.
#include "headrace/core/foreign_content.h"

#include <gtest/gtest.h>

#include <string>

#include "support/refusal.h"

namespace headrace {
namespace {

using std::string_literals::operator""s;
using Kind = ForeignContent;

TEST(ForeignContent, IsKnownByItsFirstBytes) {
  struct Row {
    std::string content;
    Kind kind;
    std::string sentence;
  };
  const std::string server = ": a server's error was saved in place of the file",
                    page = ": a web page was saved in place of the file";
  for (const Row& row : {
           Row{"", Kind::kEmpty, "is empty: the download did not begin"},
           Row{"<!DOCTYPE html>\n<html>", Kind::kWebPage, "begins with '<!DOCTYPE'" + page},
           Row{"\xEF\xBB\xBF\r\n  <HTML lang=en>", Kind::kWebPage, "begins with '<HTML'" + page},
           Row{"<?xml version='1.0'?><Error>", Kind::kWebPage, "begins with '<?xml'" + page},
           Row{"Entry not found", Kind::kServerError, "begins with 'Entry not found'" + server},
           Row{"Invalid username or password.\n", Kind::kServerError,
               "begins with 'Invalid username or password.'" + server},
           Row{"{ \"error\" : \"Repository\x1b[31m not found\"}", Kind::kServerError,
               "begins with '{ \"error\" : \"Repository [31m not found\"}'" + server},
           Row{"Access to model a/b is restricted. You must have access to it and be authenticated.",
               Kind::kServerError,
               "begins with 'Access to model a/b is restricted. You must have access to i...'" + server},
           Row{"version https://git-lfs.github.com/spec/v1\noid", Kind::kLfsPointer,
               "is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches"},
           Row{"\x1F\x8B\x08\x00"s, Kind::kCompressed, "is compressed"},
           Row{"\x28\xB5\x2F\xFD...", Kind::kCompressed, "is compressed"},
           Row{"PK\x03\x04...", Kind::kPickle, "pickle weights are not supported; convert them to safetensors files"},
           Row{"\x80\x02}q.", Kind::kPickle, "pickle weights are not supported"},
           Row{"GGUF\x03\x00"s, Kind::kGguf, "holds a GGUF model, expected another kind of file"},
           Row{"{\"a\": [1, {\"b}\\\"\": 2}, 3", Kind::kHalfJson,
               "ends within its JSON text, after 24 bytes: the download is not complete, or a bracket is missing"},
       }) {
    SCOPED_TRACE(row.content);
    EXPECT_EQ(foreign_content(row.content), row.kind);
    const auto refused = testing_support::refusal_of([&] { refuse_foreign_content("dir/file", row.content); });
    EXPECT_TRUE(refused.sentence.starts_with("dir/file: " + row.sentence)) << refused.sentence;
    const bool is_format = row.kind == Kind::kPickle || row.kind == Kind::kGguf;
    EXPECT_EQ(refused.code, is_format ? ErrorCode::kUnsupported : ErrorCode::kModelFile);
  }
}

TEST(ForeignContent, WhatReadersExpectIsNone) {
  for (const std::string& content : {"{}"s, "{\"a\": \"[\"}\n"s, "{\"errors\": 1}"s, "#version: 0.2\na b\n"s, " \n"s,
                                     "[1, 2"s, "{} x"s, "null"s, "\x40\x00\x00\x00\x00\x00\x00\x00{\"w\":"s}) {
    EXPECT_EQ(foreign_content(content), Kind::kNone) << content;
    EXPECT_NO_THROW(refuse_foreign_content("f", content));
  }
}

}  // namespace
}  // namespace headrace
