"""The written part of sample_data/prompts.jsonl: chat, code, mathematics and several languages. All of it was made
for this project, by hand or by the small generators below."""
import random

_FIRST = "amber brisk calm dusty eager faint gentle hollow icy jolly keen lunar mellow noble olive patient quiet rustic silent tidy".split()
_SECOND = "anchor bridge canyon drum engine forest garden harbor island jacket kettle lantern meadow needle orchard pepper quarry river saddle tunnel".split()
KEYS = [f"{a} {b}" for a in _FIRST for b in _SECOND]  # names of the hidden numbers

_LANGUAGES = [
    "Der Zug nach Norden fährt heute von Gleis sieben. Wer umsteigen möchte, sollte eine Viertelstunde einplanen, denn "
    "der Bahnhof wird umgebaut. Am Abend soll es regnen, morgen früh klart der Himmel wieder auf.",
    "Le marché ouvre à huit heures. Les producteurs de la vallée apportent des pommes, du miel et du fromage de chèvre. "
    "À midi, la place se vide et l'on n'entend plus que la fontaine.",
    "La biblioteca del barrio presta herramientas además de libros: un taladro, una escalera, dos sierras. Cada vecino "
    "anota en el cuaderno qué se lleva y cuándo piensa devolverlo.",
    "Il faro fu costruito su uno scoglio che con l'alta marea scompare. Il guardiano contava le onde e scriveva ogni "
    "sera la temperatura, il vento e il numero delle navi passate.",
    "O rio desce devagar até à represa. Nas margens crescem salgueiros, e quem pesca ali sabe que a melhor hora é logo "
    "depois do nascer do sol, quando a névoa ainda cobre a água.",
    "На складе лежат три ящика с подшипниками и один с пружинами. Перед отправкой нужно проверить номера партий, "
    "взвесить каждый ящик и записать результат в журнал.",
    "工厂的第二条生产线在上午九点启动。操作员先检查油压和温度,再把样品放到传送带上。如果指示灯变红,必须立即停机并通知值班工程师。",
    "駅前の小さな時計店は、毎朝七時に店を開けます。主人は古い柱時計を一つずつ巻き、遅れている時計だけを作業台に運びます。",
    "도서관 삼 층에는 지도가 보관되어 있다. 가장 오래된 지도는 손으로 그린 것으로, 강의 줄기가 지금과 조금 다르다.",
    "تفتح المحطة أبوابها في الساعة السادسة صباحا. يصل القطار الأول بعد عشر دقائق، ويحمل البريد والعمال والصحف إلى المدينة.",
    "गाँव के तालाब में इस साल पानी कम है। लोगों ने मिलकर एक नहर खोदी, ताकि बरसात का पानी सीधे खेतों तक पहुँचे।",
    "Pociąg towarowy zatrzymuje się na bocznicy tylko po to, żeby dołączyć wagony z drewnem. Dyżurny zapisuje godzinę "
    "odjazdu i gasi lampę nad torem czwartym.",
]

_CODE = [
    "def running_mean(values, window):\n    total = 0.0\n    for i, value in enumerate(values):\n        total += value\n"
    "        if i >= window:\n            total -= values[i - window]\n        yield total / min(i + 1, window)\n\n\n"
    "print(list(running_mean([3, 1, 4, 1, 5, 9, 2, 6], 3)))\n",
    "struct Ring {\n  explicit Ring(std::size_t n) : slots(n) {}\n  bool push(int v) {\n    if (size == slots.size()) return "
    "false;\n    slots[(head + size++) % slots.size()] = v;\n    return true;\n  }\n  std::vector<int> slots;\n  std::size_t "
    "head = 0, size = 0;\n};\n",
    "SELECT station, AVG(level) AS mean_level, COUNT(*) AS readings\nFROM gauge\nWHERE taken_at >= '2024-03-01'\nGROUP BY "
    "station\nHAVING COUNT(*) > 20\nORDER BY mean_level DESC;\n",
    "fn merge(a: &[u32], b: &[u32]) -> Vec<u32> {\n    let (mut i, mut j) = (0, 0);\n    let mut out = Vec::with_capacity("
    "a.len() + b.len());\n    while i < a.len() && j < b.len() {\n        if a[i] <= b[j] { out.push(a[i]); i += 1 } else { "
    "out.push(b[j]); j += 1 }\n    }\n    out.extend(&a[i..]);\n    out.extend(&b[j..]);\n    out\n}\n",
    "#!/bin/sh\n# Keeps the newest seven archives of a folder.\nset -eu\nls -1t \"$1\"/*.tar.gz | tail -n +8 | while read -r "
    "old; do\n  echo \"removing $old\"\n  rm -- \"$old\"\ndone\n",
    "{\n  \"pump\": {\"id\": 17, \"pressure\": [2.1, 2.3, 2.2], \"state\": \"running\"},\n  \"valve\": {\"id\": 4, \"open\": "
    "false, \"checked\": null},\n  \"notes\": \"inlet filter replaced\"\n}\n",
    "func wordCount(lines []string) map[string]int {\n\tcounts := make(map[string]int)\n\tfor _, line := range lines {\n\t\t"
    "for _, w := range strings.Fields(line) {\n\t\t\tcounts[strings.ToLower(w)]++\n\t\t}\n\t}\n\treturn counts\n}\n",
    "const queue = [];\nasync function drain(send) {\n  while (queue.length > 0) {\n    const item = queue[0];\n    try {\n"
    "      await send(item);\n      queue.shift();\n    } catch (error) {\n      console.warn(`retry ${item.id}: ${error}`);\n"
    "      await new Promise((done) => setTimeout(done, 500));\n    }\n  }\n}\n",
]

_MATHEMATICS = [
    "Show that the sum of the first n odd numbers is n^2. Write 1 + 3 + ... + (2n - 1) as n pairs around the mean n; the "
    "mean of the terms is n and there are n of them, so the sum is n * n.",
    "Let $A$ be a symmetric matrix with eigenvalues $\\lambda_1 \\le \\dots \\le \\lambda_d$ and orthonormal eigenvectors "
    "$u_i$. For every unit vector $x$ we have $x^T A x = \\sum_i \\lambda_i (u_i^T x)^2$, so $\\lambda_1 \\le x^T A x \\le "
    "\\lambda_d$.",
    "A tank holds 240 litres and drains at 6 litres a minute. After 15 minutes a second valve opens and the rate doubles. "
    "First 15 * 6 = 90 litres leave, 150 remain, and 150 / 12 = 12.5, so the tank is empty after 27.5 minutes.",
    "\\begin{lemma}\nIf $f : X \\to Y$ is injective and $X$ is infinite, then $Y$ is infinite.\n\\end{lemma}\n\\begin{proof}\n"
    "Suppose $Y$ had $n$ elements. Choose $n + 1$ points of $X$; their images are distinct, a contradiction.\n\\end{proof}",
    "Prove that between any two rational numbers lies another. Given p < q, take m = (p + q) / 2. Then 2p < p + q < 2q, so "
    "p < m < q, and m is rational because sums and halves of rationals are.",
]

_CHAT = [
    [("user", "How do I find which process keeps a file open on Linux?"),
     ("assistant", "Run `lsof /path/to/file`, or `fuser -v /path/to/file`. Both print the process id and the user. If the "
      "file was deleted but is still held, `lsof +L1` lists it.")],
    [("system", "You answer briefly."), ("user", "What is the boiling point of water at 3000 metres?"),
     ("assistant", "About 90 degrees Celsius."), ("user", "And why is it lower?"),
     ("assistant", "The air pressure is lower there, so the vapour pressure reaches it at a lower temperature.")],
    [("user", "Write a haiku about a compiler."),
     ("assistant", "Errors fall like rain,\none missing brace far above;\nthen silence, and light.")],
    [("system", "You help the staff of a repair shop."), ("user", "The drill starts and stops after two seconds."),
     ("assistant", "Check the battery first: a worn cell drops its voltage under load. If another battery behaves the same, "
      "look at the trigger contacts and the thermal switch."), ("user", "Another battery behaves the same."),
     ("assistant", "Then open the handle and clean the trigger contacts. Measure the resistance of the thermal switch: it "
      "should be near zero when cold.")],
    [("user", "Summarise: the bridge is closed on Monday for inspection, traffic goes by the ferry, and buses run every "
      "twenty minutes until ten in the evening."),
     ("assistant", "Monday: bridge closed; use the ferry; buses every 20 minutes until 22:00.")],
    [("user", "Translate to German: The lantern is on the table and the key is under it."),
     ("assistant", "Die Laterne steht auf dem Tisch, und der Schlüssel liegt darunter.")],
    [("user", "¿Cuántos días tiene un año bisiesto y por qué?"),
     ("assistant", "Tiene 366 días. El año solar dura unas seis horas más que 365 días, y cada cuatro años se suma un día.")],
    [("user", "Explain a hash table to a child."),
     ("assistant", "Imagine many numbered boxes and a rule that turns a name into a number. To keep a toy you follow the "
      "rule and put it in that box. Later the same rule tells you where to look, so you need not open every box.")],
]


def _arithmetic(rng):
    a, b, c = rng.randrange(12, 99), rng.randrange(12, 99), rng.randrange(2, 9)
    return rng.choice([
        f"Question: what is {a} + {b} * {c}?\nFirst {b} * {c} = {b * c}, then {a} + {b * c} = {a + b * c}.\nAnswer: {a + b * c}",
        f"Solve {c}x + {a} = {a + b * c}. Subtract {a}: {c}x = {b * c}. Divide by {c}: x = {b}.",
        f"A shelf holds {a} books. {c} shelves hold {a * c} books, and with {b} more on the floor there are {a * c + b}.",
    ])


def _table_chat(rng, index):
    """A conversation about a generated table: the answer must be looked up in the context."""
    names = rng.sample(_SECOND, 8)
    values = [rng.randrange(100, 999) for _ in names]
    table = "\n".join(f"| {n} | {v} | {'open' if v % 2 else 'closed'} |" for n, v in zip(names, values))
    pick = rng.randrange(len(names))
    return [
        ("system", f"You answer questions about stock list {index}."),
        ("user", f"| item | count | state |\n| --- | --- | --- |\n{table}\nHow many of {names[pick]} are there?"),
        ("assistant", f"There are {values[pick]} of {names[pick]}."),
        ("user", f"And which item has the largest count?"),
        ("assistant", f"It is {names[values.index(max(values))]} with {max(values)}."),
    ]


def _registry(rng, index):
    """A long document: records with references to earlier records."""
    lines, known = [f"# Inventory of hall {index}", ""], []
    for number in range(70):
        name = f"{rng.choice(_FIRST)} {rng.choice(_SECOND)}"
        code = f"{rng.choice('ABCDEFGH')}{rng.randrange(1000, 9999)}"
        line = f"{number + 1}. The {name} has the code {code}."
        if known and number % 4 == 3:
            other, other_code = rng.choice(known)
            line += f" It stands beside the {other}, whose code is {other_code}."
        known.append((name, code))
        lines.append(line)
    return "\n".join(lines)


def _message_row(turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def written_prompts(seed=7):
    rng = random.Random(seed)
    rows = [{"text": text} for text in _LANGUAGES + _CODE + _MATHEMATICS]
    rows += [_message_row(turns) for turns in _CHAT]
    rows += [_message_row(_table_chat(rng, i)) for i in range(12)]
    rows += [{"prompt": _arithmetic(rng)} for _ in range(14)]
    rows += [{"prompt": f"Write a function that {task}."} for task in (
        "reverses the words of a sentence and keeps the spaces", "counts the days between two dates",
        "removes duplicate lines from a file without sorting it", "prints a number in base seven",
        "checks whether brackets in a text are balanced", "finds the longest run of equal values in a list")]
    rows += [{"text": _registry(rng, i)} for i in range(3)]
    return rows
