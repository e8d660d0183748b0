package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// maxSubject is the maximum length of a commit subject in characters.
const maxSubject = 65

// minWords is the minimum length, in words, of a text that counts for allowedPercent.
const minWords = 4

// maxSentence is the maximum number of words in a sentence. A longer sentence is hard to read. CONTRIBUTING asks for
// 25 words.
const maxSentence = 32

// allowedPercent is the percentage of texts of each kind that may be hard to read.
var allowedPercent = map[kind]int{comment: 4, testComment: 4, paragraph: 10}

// contortions matches constructions that most readers must read twice.
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

// anyOf returns an expression that matches each of the alternatives as whole words. It ignores letter case.
func anyOf(alternatives ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.Join(alternatives, "|") + `)\b`)
}

// readabilityFaults returns what makes a text hard to read: the contortions in it, and the lengths of too long
// sentences. Code spans and link targets do not count.
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

// glossary holds the expressions that docs/glossary.md has retired.
type glossary struct {
	phrases     *regexp.Regexp // of text
	identifiers *regexp.Regexp // of identifiers, as written or with a capital
}

// readGlossary reads the retired expressions: the code spans in the last column of the table in docs/glossary.md.
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

// findRetiredExpression returns the first retired expression in a text, or "". A text with the word "deprecated" may
// contain retired expressions.
func (g *glossary) findRetiredExpression(t text) string {
	if strings.Contains(strings.ToLower(t.text), "deprecated") {
		return ""
	}
	if t.kind == identifier {
		return g.identifiers.FindString(t.text)
	}
	return g.phrases.FindString(codeSpan.ReplaceAllString(t.text, "X"))
}

// notVerbs lists words that cannot begin an imperative sentence.
var notVerbs = map[string]bool{"a": true, "an": true, "the": true, "no": true, "one": true, "when": true, "if": true, "what": true, "its": true}

// imperatives lists verbs that end like a participle although they are imperatives.
var imperatives = map[string]bool{"bring": true, "embed": true, "feed": true, "need": true, "ping": true, "seed": true, "speed": true, "string": true}

// commitSubjectFault returns what is wrong with a commit subject, or "". A subject has the form `area: change`. The
// change begins with a verb in the imperative.
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
