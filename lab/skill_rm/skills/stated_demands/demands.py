# ruff: noqa
import json
import re

NUMBERS = {
    w: i for i, w in enumerate("zero one two three four five six seven eight nine ten".split())
}
N = r"(\d+|one|two|three|four|five|six|seven|eight|nine|ten)"
REL = r"(at least|at minimum|more than|less than|fewer than|under|at most|exactly|around)?"


def number(word):
    return int(word) if word.isdigit() else NUMBERS[word.lower()]


def holds(relation, count, bound):
    relation = (relation or "at least").lower()
    if relation in ("less than", "fewer than", "under"):
        return count < bound
    if relation == "at most":
        return count <= bound
    if relation == "exactly":
        return count == bound
    return count > bound if relation == "more than" else count >= bound


def quoted(text):
    found = re.findall(r"[\"“]([^\"”]{1,80})[\"”]|['‘]([^'’]{1,40})['’]", text)
    return [(a or b).strip() for a, b in found if (a or b).strip()]


def stated(prompt):
    """Demands that the request states, by name, each with a function from a text to kept or not."""
    low, found = prompt.lower(), {}

    def add(name, check):
        found[name] = check

    if re.search(r"(no|without|not|refrain|avoid|don't)\b[^.]{0,60}\bcommas?\b", low):
        add("no comma", lambda t: "," not in t)
    for rel, n in re.findall(rf"{REL}\s*{N}\+?\s+words\b", low)[:1]:
        add("words", lambda t: holds(rel, len(words(t)), number(n)))
    for rel, n in re.findall(rf"{REL}\s*{N}\s+sentences\b", low)[:1]:
        add("sentences", lambda t: holds(rel, len(sentences(t)), number(n)))
    for n in re.findall(rf"(?:highlight|italic)[^.]{{0,60}}?{N}", low)[:1]:
        add("highlights", lambda t: len(re.findall(r"\*[^\n*]+\*", t)) >= number(n))
    if re.search(r"(double quot|quotation mark)", low) and re.search(
        r"wrap|entire|whole|put|enclose", low
    ):
        add("in quotation marks", lambda t: t.strip()[:1] == '"' == t.strip()[-1:])
    if "angular bracket" in low or "<<" in prompt:
        add("title", lambda t: bool(re.search(r"<<[^\n<>]+>>", t)))
    for n in re.findall(rf"{N}\s+bullet", low)[:1]:
        add("bullets", lambda t: len(re.findall(r"(?m)^\s*(?:\*(?!\*)|-) ?\S", t)) == number(n))
    if re.search(r"lower ?case|no capital", low):
        add("lower case", lambda t: t == t.lower())
    elif (
        re.search(r"(all|only|entire|in) (?:\w+ )?(capital|upper ?case)|all caps", low)
        and "at least" not in low
    ):
        add("capitals", lambda t: t == t.upper())
    for rel, n in re.findall(rf"(?:capital|caps)[^.]{{0,80}}?{REL}\s*{N} times", low)[:1]:
        add("capital words", lambda t: holds(rel, len(re.findall(r"\b[A-Z]{2,}\b", t)), number(n)))
    for n in re.findall(rf"{N}\s+placeholder", low)[:1]:
        add("placeholders", lambda t: len(re.findall(r"\[[^\[\]\n]*\]", t)) >= number(n))
    for n in re.findall(rf"{N}\s+paragraphs", low)[:1]:
        split = r"\s?\*\*\*\s?" if "***" in prompt else r"\n\s*\n"
        add("paragraphs", lambda t: len([p for p in re.split(split, t) if p.strip()]) == number(n))
    for mark in re.findall(r"P\.P\.S|P\.S\.", prompt)[:1]:
        add("postscript", lambda t: mark.lower() in t.lower())
    end = re.search(
        r"(?:finish|end|conclude)[^\"“]{0,90}[\"“]([^\"”]+)[\"”]|exact phrase[^\"“]{0,40}[\"“]([^\"”]+)",
        prompt,
    )
    if end:
        phrase = (end[1] or end[2]).lower().strip()
        add("ending", lambda t: t.strip().strip('"').lower().endswith(phrase))
    if "json" in low:
        add("json", is_json)
    if re.search(r"repeat (the|this|your|my|above|exactly)|first,? repeat", low):
        opening = " ".join(low.split()[:5])
        add("repeats the request", lambda t: opening in " ".join(t.lower().split()[:60]))
    for letter, rel, n in re.findall(rf"letter ['\"]?(\w)['\"]? [^.]{{0,40}}?{REL} {N}", low)[:1]:
        add("letter", lambda t: holds(rel, t.lower().count(letter), number(n)))
    if "******" in prompt or "six asterisk" in low:
        add("two answers", lambda t: "******" in t)
    if re.search(r"section \d|section x|sections", low) and not re.search(r"highlight", low):
        add(
            "sections",
            lambda t: len(re.findall(r"(?mi)^\s*(?:section|day|audience \w+|paragraph) \d", t)) > 1,
        )
    for part in re.findall(
        r"(?:not|without|avoid|exclude)\b[^.\"“']{0,50}(?:words?|keywords?|say|mention|use)[^.]*",
        prompt,
        re.I,
    ):
        for word in quoted(part) or re.findall(r"\b[a-z]{4,}\b", part.split(":")[-1]) * (
            ":" in part
        ):
            add(
                f"not {word}",
                lambda t, w=word: not re.search(rf"(?<!\w){re.escape(w)}(?!\w)", t, re.I),
            )
    for part in re.findall(
        r"(?:include|contain|use|mention)[^.\"“'n]{0,50}keywords?[^.]*", prompt, re.I
    ):
        for word in quoted(part):
            add(f"has {word}", lambda t, w=word: w.lower() in t.lower())
    return found


def is_json(text):
    try:
        json.loads(re.sub(r"^```\w*|```$", "", text.strip()))
    except ValueError:
        return False
    return True


demands = stated(prompt)
for label, text in responses.items():
    kept = [name for name, check in demands.items() if check(text)]
    print(json.dumps({"label": label, "kept": len(kept), "of": len(demands), "names": kept}))
