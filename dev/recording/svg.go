package recording

import (
	"fmt"
	"html"
	"image/color"
	"io"
	"slices"
	"strings"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

const (
	// frameInterval is the time between two frames of an SVG. Faster changes are drawn together.
	frameInterval = time.Second
	// lastFrameTime is how long the last frame is shown before the animation begins again.
	lastFrameTime = 5 * time.Second
)

// The size of a character and the margin in pixels.
const (
	cellWidth, cellHeight = 8, 17
	margin                = 12
	fontSize              = 13
)

// The colors of the picture, a light text on a dark ground.
const (
	ground     = "#16181d"
	foreground = "#d4d7dd"
)

var palette = map[ansi.BasicColor]string{
	ansi.Black: "#16181d", ansi.Red: "#f2777a", ansi.Green: "#8fc77f", ansi.Yellow: "#e8c46b", ansi.Blue: "#7aa7ee", ansi.Magenta: "#cc99cc",
	ansi.Cyan: "#66cccc", ansi.White: "#d4d7dd",
}

// screen is an emulated terminal that shows a cast.
type screen struct {
	vt            *vt.Emulator
	width, height int
}

func newScreen(c *Cast) *screen {
	s := &screen{vt.NewEmulator(c.Width, c.Height), c.Width, c.Height}
	go func() { _, _ = io.Copy(io.Discard, s.vt) }() // answers to queries of the program
	return s
}

func (s *screen) write(data string) { _, _ = s.vt.WriteString(data) }

func (s *screen) text() string {
	var lines []string
	for y := range s.height {
		var b strings.Builder
		for _, r := range s.line(y) {
			b.WriteString(r.text)
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return strings.Join(lines, "\n")
}

// run is a part of a line with one style.
type run struct {
	column int
	width  int
	text   string
	style  style
}

type style struct {
	color         string
	bold, reverse bool
}

func (s *screen) line(y int) (runs []run) {
	for x := 0; x < s.width; {
		text, width, st := " ", 1, style{color: foreground}
		if cell := s.vt.CellAt(x, y); cell != nil && cell.Content != "" {
			text, width, st = cell.Content, max(cell.Width, 1), newStyle(&cell.Style)
		}
		if last := len(runs) - 1; last >= 0 && runs[last].style == st {
			runs[last].text += text
			runs[last].width += width
		} else {
			runs = append(runs, run{x, width, text, st})
		}
		x += width
	}
	return runs
}

func newStyle(s *uv.Style) style {
	return style{color: hexColor(s.Fg), bold: s.Attrs&uv.AttrBold != 0, reverse: s.Attrs&uv.AttrReverse != 0}
}

func hexColor(c color.Color) string {
	if basic, is := c.(ansi.BasicColor); is {
		if hex := palette[basic%8]; hex != "" {
			return hex
		}
	}
	return foreground
}

// render returns a line as SVG, without its position. It returns "" for an empty line.
func render(runs []run) string {
	var b strings.Builder
	for _, r := range runs {
		color := r.style.color
		if r.style.reverse {
			fmt.Fprintf(&b, `<rect x="%d" width="%d" height="%d" fill="%s"/>`, margin+r.column*cellWidth, r.width*cellWidth, cellHeight, color)
			color = ground
		}
		text := strings.TrimRight(r.text, " ")
		if text == "" {
			continue
		}
		lead := len(text) - len(strings.TrimLeft(text, " "))
		text = text[lead:]
		attributes := ""
		if color != foreground {
			attributes += fmt.Sprintf(` fill="%s"`, color)
		}
		if r.style.bold {
			attributes += ` font-weight="bold"`
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d"%s>%s</text>`, margin+(r.column+lead)*cellWidth, cellHeight-4, ansi.StringWidth(text)*cellWidth,
			attributes, html.EscapeString(text))
	}
	return b.String()
}

// frame is one picture of an animation: the numbers of its lines.
type frame struct {
	at    time.Duration
	lines []int
}

// RenderSVG draws a cast as an animation without scripts. Lines that several frames share are stored once.
func RenderSVG(c *Cast) string {
	s := newScreen(c)
	known := map[string]int{"": 0}
	lines := []string{""}
	var frames []frame
	shoot := func(at time.Duration) {
		f := frame{at: at}
		for y := range c.Height {
			text := render(s.line(y))
			n, is := known[text]
			if !is {
				n = len(lines)
				known[text] = n
				lines = append(lines, text)
			}
			f.lines = append(f.lines, n)
		}
		empty := slices.Max(f.lines) == 0
		if last := len(frames) - 1; !empty && (last < 0 || !slices.Equal(frames[last].lines, f.lines)) {
			frames = append(frames, f)
		}
	}
	next := frameInterval
	for _, o := range c.Outputs {
		for ; o.At >= next; next += frameInterval {
			shoot(next - frameInterval)
		}
		if strings.Contains(o.Data, ansi.ResetModeAltScreenSaveCursor) {
			break // the program ends, and its screen disappears
		}
		s.write(o.Data)
	}
	shoot(next - frameInterval)
	return assemble(c, lines, frames)
}

func assemble(c *Cast, lines []string, frames []frame) string {
	width, height := 2*margin+c.Width*cellWidth, 2*margin+c.Height*cellHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="%d" fill="%s">`,
		width, height, width, height, fontSize, foreground)
	fmt.Fprintf(&b, "\n<title>%s</title>\n", html.EscapeString(c.Title))
	if len(frames) == 0 {
		return b.String() + "</svg>\n"
	}
	total := frames[len(frames)-1].at - frames[0].at + lastFrameTime
	b.WriteString("<style>text{white-space:pre}.f{visibility:hidden;animation:s " + seconds(total) + " step-end infinite}\n")
	percent := func(at time.Duration) string { return fmt.Sprintf("%.3f%%", 100*float64(at)/float64(total)) }
	for i, f := range frames {
		from, to := f.at-frames[0].at, total
		if i+1 < len(frames) {
			to = frames[i+1].at - frames[0].at
		}
		fmt.Fprintf(&b, "#f%d{animation-name:s%d}@keyframes s%d{", i, i, i)
		if from > 0 {
			b.WriteString("0%{visibility:hidden}")
		}
		fmt.Fprintf(&b, "%s{visibility:visible}", percent(from))
		if to < total {
			fmt.Fprintf(&b, "%s{visibility:hidden}", percent(to))
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "@media (prefers-reduced-motion){.f{animation:none}#f%d{visibility:visible}}</style>\n", len(frames)/2)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="%s"/><defs>`, width, height, ground)
	for i, line := range lines {
		if i > 0 {
			fmt.Fprintf(&b, "\n<g id=\"l%d\">%s</g>", i, line)
		}
	}
	b.WriteString("</defs>\n")
	for i, f := range frames {
		fmt.Fprintf(&b, `<g class="f" id="f%d">`, i)
		for y, n := range f.lines {
			if n > 0 {
				fmt.Fprintf(&b, `<use href="#l%d" y="%d"/>`, n, margin+y*cellHeight)
			}
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
