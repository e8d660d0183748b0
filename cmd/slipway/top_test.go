package main

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestASCIIIsUsedOutsideUTF8Locales(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want bool
	}{
		{"nothing is set", nil, false},
		{"LANG as Debian writes it", map[string]string{"LANG": "en_US.UTF-8"}, true},
		{"LANG as locale -a writes it", map[string]string{"LANG": "C.utf8"}, true},
		{"the POSIX locale", map[string]string{"LANG": "C"}, false},
		{"another character set", map[string]string{"LANG": "de_DE.ISO-8859-1"}, false},
		{"no character set", map[string]string{"LANG": "de_DE"}, false},
		{"LC_CTYPE goes before LANG", map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true},
		{"LC_CTYPE goes before LANG, also with less", map[string]string{"LANG": "C.UTF-8", "LC_CTYPE": "C"}, false},
		{"LC_ALL goes before both", map[string]string{"LANG": "C", "LC_CTYPE": "C", "LC_ALL": "C.UTF-8"}, true},
		{"LC_ALL goes before both, also with less", map[string]string{"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8", "LC_ALL": "POSIX"}, false},
		{"what is empty is not set", map[string]string{"LANG": "C.UTF-8", "LC_CTYPE": "", "LC_ALL": ""}, true},
		{"other categories do not matter", map[string]string{"LC_MESSAGES": "C.UTF-8"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check.Is(t, tt.want, isUTF8Locale(func(name string) string { return tt.env[name] }))
		})
	}
}
