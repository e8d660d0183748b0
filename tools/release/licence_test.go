package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	mit  = "Permission is hereby granted, free of charge, to any person obtaining\na copy of this software and associated documentation files"
	bsd2 = "// Redistribution and use in source and binary forms, with or without\n// modification, are permitted provided that the following conditions are met:"
	bsd3 = bsd2 + "\n// * Neither the name of X nor the names of its contributors may be used to\n// endorse or promote products derived from this software without\n// specific prior written permission."
	gpl3 = "                    GNU GENERAL PUBLIC LICENSE\n                       Version 3, 29 June 2007"
	mpl  = "Mozilla Public License, version 2.0\n\n1.12. “Secondary License” means either the GNU General Public License, Version 2.0, the GNU Lesser General Public License, Version 2.1"
)

func TestLicenceIsDetectedByGrantText(t *testing.T) {
	for text, want := range map[string][]string{
		mit: {"MIT"}, bsd2: {"BSD-2-Clause"}, bsd3: {"BSD-3-Clause"}, gpl3: {"GPL-3.0"}, mpl: {"MPL-2.0"},
		strings.ToUpper(mit): {"MIT"}, mit + "\n" + bsd3: {"MIT", "BSD-3-Clause"}, "All rights reserved.": nil, "": nil,
	} {
		got := detectLicences(text)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text[:min(len(text), 40)], got, want)
		}
	}
	goroot, err := runCommand(t.Context(), ".", "go", "env", "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		filepath.Join("..", "..", "LICENSE"): "Apache-2.0", filepath.Join(goroot, "LICENSE"): "BSD-3-Clause",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := detectLicences(string(text)); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %s", file, got, want)
		}
	}
}

func TestModuleLicencesAreThoseOfItsFiles(t *testing.T) {
	cache := t.TempDir()
	for file, text := range map[string]string{
		"example.com/!both@v1.0.0/LICENSE.md":    mit,
		"example.com/!both@v1.0.0/COPYING":       bsd3,
		"example.com/!both@v1.0.0/NOTICE":        gpl3,
		"example.com/none@v1.0.0/README.md":      mit,
		"example.com/unknown@v1.0.0/LICENSE.txt": "Ask us.",
	} {
		writeTestFile(t, filepath.Join(cache, file), text)
	}
	l := &licenceCache{cache}
	if got, err := l.licenceOfModule("example.com/Both", "v1.0.0"); err != nil || got != "BSD-3-Clause AND MIT" {
		t.Errorf("%q, %v", got, err)
	}
	for _, path := range []string{"example.com/none", "example.com/unknown"} {
		if got, err := l.licenceOfModule(path, "v1.0.0"); !errors.Is(err, errNoLicence) || !strings.Contains(err.Error(), path+" v1.0.0") {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if _, err := l.licenceOfModule("example.com/absent", "v1.0.0"); err == nil {
		t.Error("a missing module has a licence")
	}
}

// TestLinkedModulesHaveAllowedLicences does the same as `make audit`.
func TestLinkedModulesHaveAllowedLicences(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := checkLicences(t.Context(), root, []string{"slipway", "slipway-agent"}, &out); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "Apache-2.0") {
		t.Errorf("output %q", out.String())
	}
}
