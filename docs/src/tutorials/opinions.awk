# Two opinions a row; the label is 1 if both things were good. For the tutorial on comparing mechanisms.
BEGIN {
  srand(1)
  things = split("soup bread film song walk book room coat", thing, " ")
  words = split("good fine great lovely bad dull awful poor", word, " ")
  for (row = 0; row < 2400; row++) {
    label = 1; text = ""
    for (part = 0; part < 2; part++) {
      w = int(rand() * words) + 1; no = rand() < 0.5
      text = text (part ? " and the " : "the ") thing[int(rand() * things) + 1] " was " (no ? "not " : "") word[w]
      label = label && ((w <= 4) != no)
    }
    print label "\t" text
  }
}
