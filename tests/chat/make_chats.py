#!/usr/bin/env python3
"""Renders templates with Python's jinja2 as transformers calls it (pip install jinja2).

make_chats.py                        writes expected.json, which chat_template_golden_test reads
make_chats.py --compare PROGRAM DIR  compares render_chats with jinja2 on the *.jinja files of DIR
"""
import argparse
import datetime
import json
import pathlib
import subprocess

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<s>", "</s>"


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("show"), [], [], body).set_lineno(line)

    def show(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def final_text(message):
    content = message["content"]
    if isinstance(content, str):
        return content
    return [part["text"] for part in content if "text" in part][-1]


def cut_behind(text, content):
    """transformers' continue_final_message."""
    at = text.rindex(content.strip())
    size = len(content.lstrip())
    return text[:at + (size if text[at:at + size] == content.lstrip() else len(content.strip()))]


def rendered(template, chat):
    chat = json.loads(json.dumps(chat))
    variables = {"documents": None, "tools": chat.get("tools"), "bos_token": BOS, "eos_token": EOS,
                 "add_generation_prompt": chat.get("add_generation_prompt", True), **chat.get("kwargs", {})}
    try:
        text = environment().from_string(template).render(messages=chat["messages"], **variables)
        return {"text": cut_behind(text, final_text(chat["messages"][-1])) if chat.get("continue_final_message") else text}
    except Exception as error:  # of any type: a template may do anything
        return {"error": str(error)}


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def expected(template, chat):
    result = rendered(template, chat)
    return result if "error" in result else [len(result["text"].encode()), f"{fnv1a(result['text']):016x}"]


def write_expected(templates, chats):
    lines = [f"{json.dumps(path.stem)}: {json.dumps([expected(path.read_text(), chat) for chat in chats])}"
             for path in templates]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compare(program, templates, chats):
    cases = [(path, chat) for path in templates for chat in chats]
    lines = "".join(json.dumps({"template": path.read_text(), "bos_token": BOS, "eos_token": EOS, "input": chat}) + "\n"
                    for path, chat in cases)
    ran = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    different = 0
    for (path, chat), line in zip(cases, ran.stdout.split("\n")[:-1], strict=True):
        wanted, got = rendered(path.read_text(), chat), json.loads(line)
        if wanted == got or ("error" in wanted and got.get("error", "").endswith(wanted["error"])):
            continue
        different += 1
        print(f"{path.name}: {json.dumps(chat)[:200]}\n  jinja2   {wanted}\n  headrace {got}")
    print(f"{len(templates)} templates, {len(cases)} chats, {different} different")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", nargs=2, metavar=("PROGRAM", "DIR"))
    arguments = parser.parse_args()
    chats = json.loads((HERE / "conversations.json").read_text())
    if arguments.compare:
        program, folder = arguments.compare
        raise SystemExit(compare(program, sorted(pathlib.Path(folder).glob("*.jinja")), chats) > 0)
    write_expected(sorted((HERE / "templates").glob("*.jinja")), chats)


if __name__ == "__main__":
    main()
