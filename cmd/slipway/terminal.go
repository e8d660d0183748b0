package main

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/slipway-dev/slipway/internal/screen"
)

// textWriter writes text without terminal control characters, because names and messages come from the cluster: a pod's
// owner must not control the terminal of an admin. Each call of Write gets whole characters.
type textWriter struct{ io.Writer }

func (w textWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, screen.RemoveControls(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// unwrapText returns the writer that a textWriter writes to. It returns any other writer unchanged.
func unwrapText(w io.Writer) io.Writer {
	if text, is := w.(textWriter); is {
		return text.Writer
	}
	return w
}

// supportsScreen reports whether the output is a terminal that supports cursor movement.
func supportsScreen(out io.Writer) bool {
	file, is := unwrapText(out).(*os.File)
	name := os.Getenv("TERM")
	return is && term.IsTerminal(int(file.Fd())) && name != "dumb" && name != ""
}
