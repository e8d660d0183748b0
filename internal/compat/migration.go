package compat

import (
	"strings"

	"github.com/slipway-dev/slipway/internal/config"
)

// Migration is what becomes of the configuration of a tool that Slipway replaces.
type Migration struct {
	Tool   string
	Config config.Agent
	// Notes are what a user of the tool should know before moving.
	Notes []string
}

// noteWidth is the length of the longest line of notes, in bytes.
const noteWidth = 110

// File is a configuration file for `slipway agent --config`, with the notes as comments above.
func (m Migration) File() ([]byte, error) {
	body, err := m.Config.Write()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For slipway agent --config FILE, made from a configuration of " + m.Tool + ".\n#\n")
	b.WriteString(Comments(m.Notes))
	if len(body) == 0 {
		body = []byte("# The defaults of slipway agent do all of it.\n")
	}
	b.Write(body)
	return []byte(b.String()), nil
}

// Comments writes notes as a list in comments.
func Comments(notes []string) string {
	var b strings.Builder
	for _, note := range notes {
		Comment(&b, note)
	}
	return b.String()
}

// Comment writes a note as an entry of a list in YAML's comments.
func Comment(b *strings.Builder, note string) {
	line := "# -"
	for _, word := range strings.Fields(note) {
		if len(line)+1+len(word) > noteWidth {
			b.WriteString(line + "\n")
			line = "#  "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}
