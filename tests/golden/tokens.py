"""python tokens.py MODEL.gguf [OUT.json]    (packages: requirements.txt)

Token ids that llama.cpp gives to strings chosen to go wrong. Strings are stored as UTF-8 text where they are well-formed and as hexadecimal bytes
where they are not; "special" says whether control tokens were recognised.
"""
import hashlib
import json
import pathlib
import random
import sys

import llama_cpp

here = pathlib.Path(__file__).parent
model_path = pathlib.Path(sys.argv[1])
out_path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "tokens.json"
vocabulary = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)

words = ["Hello", "Hello world", " Hello", "hello,world!", "HELLO wOrLd", "antidisestablishmentarianism", "a", "A", "zzzzzzzzzzzzzzzzzzzzzzzz", "e" * 300,
         "ab" * 500, "I'm you're he's we'll they'd I've don't", "'s 't 're 've 'm 'll 'd", "'S 'T 'RE 'VE 'M 'LL 'D", "it''s ''s'' 'sa", "rock'n'roll",
         "can’t won’t it’s", "x'x", "'", "''", "naïve café résumé Ångström", "Straße GROẞE", "_snake_case_ CamelCase kebab-case", "e.g., i.e., etc...."]
digits = ["0", "7", "10", "123", "1234567890", " 1", "  1", "   12   34   ", "1 2 3", "3.14159", "-273.15", "1,000,000", "1e-10", "0x1F600", "2024-02-29T23:59:60Z",
          "a1b2c3", "1a 2b 3c", "x²+y³=z⁴", "½ ⅓ ¾", "Ⅷ ⅷ ①②③", "٣٤٥", "१२३", "๑๒๓", "123", "𝟘𝟙𝟚", "12\n34", "12\t34", "\t1", "\n1", " \n 1", "1'st 2'nd",
          "9" * 100, "v1.2.3-rc.4+build.5"]
spaces = ["", " ", "  ", "   ", " " * 17, " " * 200, "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n", "a\r\nb\r\n", "a\rb", "\t", "\t\t", "\t \t", " \t\n\r\f\v ", "a b",
          "a  b", "a   b", "a    b", " a", "  a", "a ", "a  ", "\ta", "\t\ta", " \ta", "\t a", "a\n b", "a \nb", "a\n  b", "a  \n  b", "a\n\nb", "a \n \n b",
          "    if x:\n        return y\n", "\tif (x)\n\t\treturn y;\n", "a\u00a0b", "a\u00a0\u00a0b", "a\u2003b", "a\u2028b\u2029c", "a\u3000b", "a\u200bb", "a\ufeffb",
          "\ufeffa", "a\u0085b", "a\u1680b", "a\u180eb", "a \u180e b", "a\u202fb\u205fc", "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a",
          " !", "  !", " !  !", "! !", "\n!", " \n!", "!\n", "a\x0bb\x0cc", "\x1c\x1d\x1e\x1f", "x" + " " * 5 + "\n" * 5 + " " * 5 + "y", "\n \n \n", " \n"]
marks = ["!", "!!", "!!!", "?!?!", "...", "……", "—–-", "«»„“”‘’", "()[]{}<>", "a+b=c", "a && b || !c", "x->y::z", "/* c */ // d", "#include <stdio.h>", "$100", "100%", "€5 £6 ¥7",
         "@user #tag", "http://example.org/a?b=c&d=e#f", "~/.config/*", "C:\\dir\\file.txt", "\\n \\t \\0", "`code` ```block```", "<html><body></body></html>",
         "{\"k\": [1, null, true]}", "^_^ ;-) :D", "!a", "!1", "1!", "a!b!c", ".5", "…a", "™®©", "∑∏∫√∞≈≠≤≥", "←↑→↓⇒⇔", "─│┌┐└┘█▓▒░", "♠♥♦♣♪♫", "№ § ¶ † ‡"]
scripts = ["Привет, мир!", "ёжик Ёлка", "Їжак ґанок", "Γειά σου Κόσμε", "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "مَرْحَبًا", "سلام دنیا", "नमस्ते दुनिया", "क्षत्रिय", "வணக்கம்", "ภาษาไทย", "ສະບາຍດີ",
           "မြန်မာ", "ខ្មែរ", "བོད་སྐད", "ქართული", "Հայերեն", "አማርኛ", "你好,世界!", "中文字符測試", "日本語のテスト", "カタカナ", "ひらがな", "ｶﾀｶﾅ", "한국어 시험", "각", "ㄱㄴㄷ", "𠀀𠀁𠀂", "㐀㐁", "ﬁ ﬂ ﬀ", "Ａ１！",
           "𝕳𝖊𝖑𝖑𝖔", "𐌰𐌱𐌲", "ꙮ", "ǅ ǈ", "ʰʷˤ", "ªº", "ᏣᎳᎩ", "ᚠᚢᚦ", "Việt Nam tiếng", "İstanbul ıI", "æøå ÆØÅ", "łódź", "中1文2", "a中b", " 中", "中 文", "中。文、"]
emoji = ["😀", "😀😀", "😀 😀", " 😀", "a😀b", "1😀2", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺", "☺️", "1️⃣", "#️⃣", "🧑🏿‍🚀", "😀\n", "🫠🫡", "🪿", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "(╯°□°)╯︵ ┻━┻", "¯\\_(ツ)_/¯", "🎉!", "!🎉", "🎉s 'd🎉"]
combining = ["e\u0301", "é", "n\u0303", "a\u0308\u0304", "\u0301", " \u0301", "a\u0301\u0302\u0303\u0304\u0305", "Z\u0351\u036b\u0343a\u0300\u0301l\u0334g\u0321o\u0489", "1\u0301", "!\u0301", "\u200d",
             "\u200d\u200d", "a\u200db", "a\u00adb", "\u202eabc\u202c", "x\u20dd", "\ufe0f", "\u034f"]
controls = ["\x00", "a\x00b", "\x01\x02\x03", "\x04\x06\x13", "\x7f", "\x80", "\x1b[31mred\x1b[0m", "a\x08b", "\x04", "x\x04y", "\ufffd", "\ufffe", "\uffff", "\ue000", "\U000f0000", "\U0010ffff", "\u0378",
            "\U000e0001", "\U0001f9ff"]
# Control tokens written as text, and text that only looks like them.
special_like = ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "a<|im_end|>b", "<|im_end|><|im_end|>", " <|im_end|> ", "<|im_end|", "<|im_end|>\n",
                "<|im_start", "<<|im_start|>>", "<repo_name>x<file_sep>y", "<reponame>", "<jupyter_code>print(1)", "<empty_output>", "<|IM_END|>", "1<|im_end|>2", "  <|im_end|>  x"]
# Not well-formed, in ways every decoder replaces alike: one replacement character per offending byte.
invalid = [b"\xff", b"\xfe\xff", b"a\x80b", b"\xbf", b"abc\xff def", b"\xc3", b"a\xc3", b"\xc3(", b"\xe2\x82", b"a\xe2\x82 b", b"\xe2(\xa1", b"\xf0\x9f\x98", b"x\xf0\x9fy", b"\xf0(\x8c\xbc",
           b"caf\xe9", b"na\xefve r\xe9sum\xe9", b"\x80\x81\x82\x83", b"\xff\n\xff", b"1\xff2", b"\xe4\xb8\xad\xe6\x96", b" \xff", b"\xff "]

random.seed(20)
ranges = [(0x20, 0x7e)] * 4 + [(0xa0, 0x17f), (0x370, 0x3ff), (0x400, 0x45f), (0x5d0, 0x5ea), (0x300, 0x36f), (0x4e00, 0x9fa5), (0x1f300, 0x1f64f), (0x2000, 0x206f), (0x30, 0x39), (0x9, 0xd), (0x20, 0x20)]
mixed = ["".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(1, 40))) for _ in range(120)]
texts = [path.read_text() for path in sorted(here.glob("texts/*.txt")) if path.stem != "long"]

cases = []
for text in words + digits + spaces + marks + scripts + emoji + combining + controls + mixed + texts:
    cases.append({"text": text, "special": False, "ids": vocabulary.tokenize(text.encode(), add_bos=False, special=False)})
for text in special_like:
    for special in (False, True):
        cases.append({"text": text, "special": special, "ids": vocabulary.tokenize(text.encode(), add_bos=False, special=special)})
for data in invalid:
    cases.append({"hex": data.hex(), "special": False, "ids": vocabulary.tokenize(data, add_bos=False, special=False)})

golden = {"model_sha256": hashlib.sha256(model_path.read_bytes()).hexdigest(), "versions": {"llama_cpp_python": llama_cpp.__version__}, "cases": cases}
out_path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(len(cases), "strings")
