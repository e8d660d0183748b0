package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// maxSubject is the longest commit subject in characters.
const maxSubject = 65

// minWords is the length of the shortest block of text that counts, in words.
const minWords = 4

// maxSentence is the number of words in a sentence above which it is hard to read. CONTRIBUTING asks for 25.
const maxSentence = 32

// allowedPercent is the share of blocks that may be hard to read, in percent.
var allowedPercent = map[kind]int{comment: 4, testComment: 4, paragraph: 10}

// contortions are constructions that a reader has to read twice.
var contortions = anyOf(
	`whoever`, `whichever`, `whatever`, `nobody`, `somebody`, `be it`, `whose`, `thereof`, `nor`,
	`of (which|whom)`, `(to|by|for|from|in|on|with|at|before|after) (which|whom)`, `what (becomes|became) of`,
	`that of`, `those of`, `one that`, `those that`, `is no`, `are no`, `none is`,
	`is to be`, `are to be`, `was to be`, `is asked for`, `goes on`, `on account of`, `for (its|their) sake`, `in its place`,
	`the other way round`, `by itself`, `not any more`, `has yet to`, `to be had`, `but for`,
	`stands? (for|against|in for)`, `says? so`, `is said`, `are said`, `was said`, `told of`, `held against`, `taken for`,
	`knows? of no`, `and no other`, `all the same`, `may as well`,
)

var (
	codeSpan    = regexp.MustCompile("`[^`]*`")
	link        = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	sentenceEnd = regexp.MustCompile(`[.!?:;]\s+`)
	word        = regexp.MustCompile(`[A-Za-z0-9'’-]+`)
)

// anyOf returns one expression that finds whole words of any of the alternatives, in any case.
func anyOf(alternatives ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.Join(alternatives, "|") + `)\b`)
}

// readabilityFaults returns the contortions and the lengths of too long sentences in a text. Code spans and link targets do not count.
func readabilityFaults(text string) []string {
	text = link.ReplaceAllString(codeSpan.ReplaceAllString(text, "X"), "$1")
	faults := contortions.FindAllString(text, -1)
	for _, s := range sentenceEnd.Split(text, -1) {
		if n := len(word.FindAllString(s, -1)); n > maxSentence {
			faults = append(faults, fmt.Sprintf("a sentence of %d words", n))
		}
	}
	return faults
}

// glossary has the expressions that docs/glossary.md retires.
type glossary struct {
	phrases     *regexp.Regexp // of text
	identifiers *regexp.Regexp // of identifiers, as written or with a capital
}

// readGlossary reads the code spans of the last column of the table in docs/glossary.md.
func readGlossary(root string) (*glossary, error) {
	b, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	if err != nil {
		return nil, err
	}
	var phrases, identifiers []string
	for _, line := range strings.Split(string(b), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, span := range codeSpan.FindAllString(cells[3], -1) {
			expression := strings.Trim(span, "`")
			quoted := regexp.QuoteMeta(expression)
			if expression == strings.ToLower(expression) { // not in camelCase, as an identifier
				phrases = append(phrases, `(?i:`+quoted+`)`)
			} else {
				phrases = append(phrases, quoted)
			}
			if !strings.ContainsAny(expression, " -") {
				capital := regexp.QuoteMeta(strings.ToUpper(expression[:1]) + expression[1:])
				identifiers = append(identifiers, `(^`+quoted+`|`+capital+`)([A-Z0-9]|$)`)
			}
		}
	}
	if len(phrases) == 0 {
		return nil, fmt.Errorf("docs/glossary.md: no expression in the last column of its table")
	}
	return &glossary{
		phrases:     regexp.MustCompile(`\b(` + strings.Join(phrases, "|") + `)\b`),
		identifiers: regexp.MustCompile(strings.Join(identifiers, "|")),
	}, nil
}

// findRetiredExpression returns the first retired expression in a text, or "". What is named deprecated may have its old name.
func (g *glossary) findRetiredExpression(t text) string {
	if strings.Contains(strings.ToLower(t.text), "deprecated") {
		return ""
	}
	if t.kind == identifier {
		return g.identifiers.FindString(t.text)
	}
	return g.phrases.FindString(codeSpan.ReplaceAllString(t.text, "X"))
}

// notVerbs begin no imperative sentence, though they do not end as a participle.
var notVerbs = map[string]bool{"a": true, "an": true, "the": true, "no": true, "one": true, "when": true, "if": true, "what": true, "its": true}

// imperatives end as a participle does, and are none.
var imperatives = map[string]bool{"bring": true, "embed": true, "feed": true, "need": true, "ping": true, "seed": true, "speed": true, "string": true}

// commitSubjectFault returns what is wrong with the subject of a commit, or "". A subject is `area: change`, and the change begins
// with a verb in the imperative.
func commitSubjectFault(subject string) string {
	if n := len([]rune(subject)); n > maxSubject {
		return fmt.Sprintf("has %d characters, %d allowed: move the reason to the body", n, maxSubject)
	}
	area, change, ok := strings.Cut(subject, ": ")
	if !ok || area == "" || change == "" {
		return "want `area: change`"
	}
	first, _, _ := strings.Cut(change, " ")
	lower := strings.ToLower(first)
	participle := (strings.HasSuffix(lower, "ed") || strings.HasSuffix(lower, "ing")) && !imperatives[lower]
	if notVerbs[lower] || participle || !unicode.IsLetter([]rune(first)[0]) {
		return fmt.Sprintf("begin the change with a verb in the imperative, not %q", first)
	}
	return ""
}
