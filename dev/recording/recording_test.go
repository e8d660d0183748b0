package recording

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// maxSVGSize is the limit of the SVG in bytes, so that web pages show it without delay.
const maxSVGSize = 300_000

func TestCommittedSVGIsDrawnFromTheCast(t *testing.T) {
	file, err := os.Open("../../docs/top.cast")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	cast, err := Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/top.svg")
	if err != nil {
		t.Fatal(err)
	}
	got := RenderSVG(cast)
	if got != string(want) {
		t.Error("docs/top.svg differs from the drawing of docs/top.cast: run make recording")
	}
	if len(got) > maxSVGSize {
		t.Errorf("the SVG has %d bytes, want at most %d", len(got), maxSVGSize)
	}
	for _, text := range []string{"due in 0:", "waits for PDB shop/invoices", "is terminating, at most", "evictions", "Drained"} {
		if !strings.Contains(got, text) {
			t.Errorf("the recording does not show %q", text)
		}
	}
	for x := xml.NewDecoder(strings.NewReader(got)); ; {
		if _, err := x.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordedSessionSurvivesEncoding(t *testing.T) {
	s, err := Start(t.Context(), 40, 5, "a <test>", []string{"TERM=xterm"}, "sh", "-c", `printf 'ready é\n'; read -r x; printf '\033[31;1mred & %s\033[m' "$x"`)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.AwaitText(t.Context(), "ready é"), s.Press("<typed>\r")); err != nil {
		t.Fatal(err)
	}
	cast, err := s.Finish()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := cast.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(bytes.NewReader(raw))
	if err != nil || again.Width != 40 || again.Height != 5 || len(again.Outputs) == 0 {
		t.Fatalf("%+v, %v", again, err)
	}
	again.Outputs = append(again.Outputs, Output{At: again.Outputs[len(again.Outputs)-1].At + 2*time.Second, Data: "\x1b[?1049l"})
	svg := RenderSVG(again)
	for _, want := range []string{"<title>a &lt;test&gt;</title>", `fill="#f2777a" font-weight="bold">red &amp; &lt;typed&gt;</text>`, "ready é"} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is missing in\n%s", want, svg)
		}
	}
}
