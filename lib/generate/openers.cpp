#include "generate/row_script.h"

namespace oscar {

const std::vector<std::string>& text_openers() {
  static const std::vector<std::string> kOpeners = {
      "The harbour was still dark when the first boats came in, and ",
      "\"You are late,\" said the clockmaker, and he did not look up from his bench.\n\n",
      "In this chapter we look at how rivers carry sand to the sea. ",
      "# Installation\n\nDownload the archive for your platform and unpack it. Then ",
      "def read_table(path, delimiter=\",\"):\n    \"\"\"Return the rows of a table as dictionaries.\"\"\"\n",
      "#include <stdio.h>\n\n/* Counts the lines of a file. */\nint main(int argc, char **argv) {\n",
      "class Queue:\n    def __init__(self):\n        self.items = []\n\n",
      "function total(prices) {\n  let sum = 0;\n",
      "SELECT name, COUNT(*) AS orders\nFROM customers\n",
      "The meeting was opened at nine. Three points were on the agenda: ",
      "Question: A train leaves at 8:15 and arrives at 11:40. How long does it travel?\nAnswer: ",
      "Let n be a whole number greater than one. We show that ",
      "| city | country | inhabitants |\n| --- | --- | --- |\n| Oslo | Norway | ",
      "{\"name\": \"sensor-4\", \"readings\": [",
      "Dear neighbors,\n\nfrom Monday on the road in front of the school will be ",
      "Ingredients: two onions, a spoon of oil, 400 g of tomatoes, salt. First ",
      "The experiment was repeated with five samples. Table 1 shows that ",
      "On the history of the lighthouse there are two accounts. The older one says that ",
      "A: Did you see the news this morning?\nB: No, what happened?\nA: ",
      "The court had to decide whether the tenant was obliged to ",
      "Warning: do not open the cover while the machine is running. Before cleaning, ",
      "Release notes\n\nVersion 2.4 fixes an error that occurred when ",
      "Il était une fois, dans un village au bord de la mer, ",
      "Der Zug hielt kurz vor der Grenze, und niemand wusste, ",
      "El informe de este año muestra que ",
      "To whom it may concern: the undersigned confirms that ",
  };
  return kOpeners;
}

const std::vector<std::string>& questions() {
  static const std::vector<std::string> kQuestions = {
      "Why is the sky red in the evening?",
      "Write a short story about a gardener who finds a key.",
      "Explain the difference between a list and a tuple in Python, with examples.",
      "What should I think of before I rent a flat?",
      "Write a function in C that reverses a string in place, and explain it.",
      "Summarize how a bill becomes a law.",
      "A shop sells pens at 3 for 2 euros. How much do 18 pens cost? Show the steps.",
      "Give me a recipe for a simple soup for four people.",
      "How do vaccines work?",
      "Translate into French: The library closes at six, but the garden stays open.",
      "Write an SQL query that lists customers without an order in the last year.",
      "Can you explain that again, in simpler words?",
      "Please give me more detail on your second point.",
      "What are the arguments for and against working from home?",
      "Write a polite letter that asks for a refund.",
      "How would I test this?",
      "List ten names for a small bakery.",
      "What caused the First World War?",
      "Prove that the square root of two is not rational.",
      "Write a poem about the sea in winter.",
      "Turn this into a table: Anna is 31 and lives in Graz, Ben is 28 and lives in Bonn.",
      "My program stops with a segmentation fault. How do I find out why?",
      "Erkläre mir in drei Sätzen, was eine Inflation ist.",
      "¿Qué lugares debo visitar en tres días en Sevilla?",
      "Are you sure? Check your answer.",
      "Thank you. What should I read next about it?",
  };
  return kQuestions;
}

}  // namespace oscar
