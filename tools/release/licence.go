package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// licenceTexts lists phrases that identify a licence, with the licence's SPDX ID (https://spdx.org/licenses/). The
// phrases are in lower case, with single spaces between words. A text may have several licences.
var licenceTexts = []struct{ id, words, without string }{
	{id: "Apache-2.0", words: "apache license version 2.0, january 2004"},
	{id: "Apache-2.0", words: "licensed under the apache license, version 2.0"},
	{id: "MIT", words: "permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{id: "ISC", words: "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"},
	{id: "ISC", words: "permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted"},
	{id: "BSD-3-Clause", words: bsdWords + bsdThird},
	{id: "BSD-2-Clause", words: bsdWords, without: bsdThird},
	{id: "MPL-2.0", words: "mozilla public license, version 2.0"},
	{id: "MPL-2.0", words: "mozilla public license version 2.0"},
	{id: "CC0-1.0", words: "cc0 1.0 universal"},
	{id: "Unlicense", words: "this is free and unencumbered software released into the public domain"},
	// By their headings, because the MPL mentions all three.
	{id: "GPL-2.0", words: "gnu general public license version 2, june 1991"},
	{id: "GPL-3.0", words: "gnu general public license version 3, 29 june 2007"},
	{id: "LGPL-2.1", words: "gnu lesser general public license version 2.1, february 1999"},
	{id: "LGPL-3.0", words: "gnu lesser general public license version 3, 29 june 2007"},
	{id: "AGPL-3.0", words: "gnu affero general public license version 3, 19 november 2007"},
	{id: "BUSL-1.1", words: "business source license 1.1"},
}

// The phrases of BSD licences. A zero byte means that other text may precede the next phrase.
const (
	bsdWords = "redistribution and use in source and binary forms, with or without modification, are permitted"
	bsdThird = "\x00may be used to endorse or promote products derived from this software without specific prior written permission"
)

// allowedLicences lists the licences that a linked module may have. None of them has requirements for the source of
// the program that links the module.
var allowedLicences = []string{"Apache-2.0", "MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "MPL-2.0", "CC0-1.0", "Unlicense"}

// licenceFile matches the names of files that contain a licence.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([.-].*)?$`)

// errNoLicence means that the folder of a module has no licence that licenceTexts knows.
var errNoLicence = errors.New("no known licence")

// spdxExpressionOfDir returns the licences of a module's folder as a sorted SPDX expression, such as "Apache-2.0 AND MIT".
func spdxExpressionOfDir(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	found := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		for _, id := range detectLicences(string(text)) {
			found[id] = true
		}
	}
	if len(found) == 0 {
		return "", errNoLicence
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), " AND "), nil
}

// withoutMarks replaces the characters that begin comments, list items and quotations by spaces.
var withoutMarks = strings.NewReplacer("//", " ", "*", " ", "#", " ", "`", " ", "\"", " ", "“", " ", "”", " ", ">", " ")

// detectLicences returns the SPDX IDs of the licences that have their phrases in a text.
func detectLicences(text string) []string {
	text = strings.Join(strings.Fields(withoutMarks.Replace(strings.ToLower(text))), " ")
	var ids []string
	for _, g := range licenceTexts {
		if containsPhrasesInOrder(text, g.words) && (g.without == "" || !containsPhrasesInOrder(text, strings.TrimPrefix(g.without, "\x00"))) && !slices.Contains(ids, g.id) {
			ids = append(ids, g.id)
		}
	}
	return ids
}

// containsPhrasesInOrder reports whether a text contains all phrases in the given order. Zero bytes separate the
// phrases in words.
func containsPhrasesInOrder(text, words string) bool {
	for part := range strings.SplitSeq(words, "\x00") {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// licenceCache finds the licences of modules in Go's module cache.
type licenceCache struct{ cache string }

func newLicenceCache(ctx context.Context, root string) (*licenceCache, error) {
	cache, err := runCommand(ctx, root, "go", "env", "GOMODCACHE")
	return &licenceCache{cache}, err
}

// licenceOfModule returns the licence of a linked module. The module cache has the module, because it was needed for
// the build.
func (l *licenceCache) licenceOfModule(path, version string) (string, error) {
	escaped, err := module.EscapePath(path)
	if err != nil {
		return "", err
	}
	escapedVersion, err := module.EscapeVersion(version)
	if err != nil {
		return "", err
	}
	id, err := spdxExpressionOfDir(filepath.Join(l.cache, filepath.FromSlash(escaped)+"@"+escapedVersion))
	if err != nil {
		return "", fmt.Errorf("licence of %s %s: %w", path, version, err)
	}
	return id, nil
}

// listLinkedModules returns the modules that the commands link on any target, and their versions. The keys are
// module paths. It leaves out the commands' own module.
func listLinkedModules(ctx context.Context, root string, commands []string, targets []target) (map[string]string, error) {
	const format = "{{with .Module}}{{if not .Main}}{{with .Replace}}{{.Path}} {{.Version}}{{else}}{{.Path}} {{.Version}}{{end}}{{end}}{{end}}"
	modules := map[string]string{}
	for _, t := range targets {
		lines, err := listDependencies(ctx, root, commands, t, format)
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", t, err)
		}
		for _, line := range lines {
			if path, version, ok := strings.Cut(line, " "); ok {
				modules[path] = version
			}
		}
	}
	return modules, nil
}

// checkLicences prints the number of linked modules for each licence. If a module's licence is unknown or not
// allowed, it returns an error.
func checkLicences(ctx context.Context, root string, commands []string, out io.Writer) error {
	modules, err := listLinkedModules(ctx, root, commands, supportedTargets)
	if err != nil {
		return err
	}
	l, err := newLicenceCache(ctx, root)
	if err != nil {
		return err
	}
	count, wrong := map[string]int{}, []error(nil)
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		id, err := l.licenceOfModule(path, modules[path])
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%w: read its files, and add the words to grants in tools/release/licence.go", err))
			continue
		}
		count[id]++
		for one := range strings.SplitSeq(id, " AND ") {
			if !slices.Contains(allowedLicences, one) {
				wrong = append(wrong, fmt.Errorf("%s %s has the licence %s: must be one of %s", path, modules[path], one, strings.Join(allowedLicences, ", ")))
			}
		}
	}
	_, _ = fmt.Fprintf(out, "licences of the %d linked modules:\n", len(modules))
	for _, id := range slices.Sorted(maps.Keys(count)) {
		_, _ = fmt.Fprintf(out, "%5d  %s\n", count[id], id)
	}
	return errors.Join(wrong...)
}
