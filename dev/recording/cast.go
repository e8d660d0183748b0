// Package recording records a program in a terminal as an asciinema cast, and draws a cast as an animated SVG.
package recording

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
)

// Cast is a recording in the format asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/).
type Cast struct {
	Width, Height int
	Title         string
	Outputs       []Output
}

// Output is what a program wrote to the terminal at a time since the start.
type Output struct {
	At   time.Duration
	Data string
}

type castHeader struct {
	Version int               `json:"version"`
	Width   int               `json:"width"`
	Height  int               `json:"height"`
	Title   string            `json:"title,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Encode returns the cast as a file.
func (c *Cast) Encode() ([]byte, error) {
	var b bytes.Buffer
	file := json.NewEncoder(&b)
	file.SetEscapeHTML(false)
	err := file.Encode(castHeader{Version: 2, Width: c.Width, Height: c.Height, Title: c.Title, Env: map[string]string{"TERM": "xterm-256color"}})
	for _, o := range c.Outputs {
		err = errors.Join(err, file.Encode([]any{float64(o.At.Milliseconds()) / 1000, "o", o.Data}))
	}
	return b.Bytes(), err
}

// Decode reads a file. It ignores events other than output.
func Decode(from io.Reader) (*Cast, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	if !lines.Scan() {
		return nil, fmt.Errorf("cast: no header: %w", lines.Err())
	}
	var h castHeader
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil || h.Version != 2 || h.Width <= 0 || h.Height <= 0 {
		return nil, fmt.Errorf("cast: header %q: want version 2 with width and height: %w", lines.Text(), err)
	}
	c := &Cast{Width: h.Width, Height: h.Height, Title: h.Title}
	for lines.Scan() {
		var at float64
		var kind, data string
		if err := json.Unmarshal(lines.Bytes(), &[]any{&at, &kind, &data}); err != nil {
			return nil, fmt.Errorf("cast: event %q: %w", lines.Text(), err)
		}
		if kind == "o" {
			c.Outputs = append(c.Outputs, Output{time.Duration(at * float64(time.Second)), data})
		}
	}
	return c, lines.Err()
}

// LastScreen returns the text that is on the terminal at the end, without spaces at the ends of lines.
func (c *Cast) LastScreen() string {
	s := newScreen(c)
	for _, o := range c.Outputs {
		s.write(o.Data)
	}
	return s.text()
}

// Session is a program that runs in a terminal and is recorded.
type Session struct {
	cmd      *exec.Cmd
	terminal *os.File
	began    time.Time
	read     chan struct{}

	mu   sync.Mutex
	cast Cast
}

// Start runs a program in a terminal of a size, and begins to record. The program stops when ctx ends.
func Start(ctx context.Context, width, height int, title string, env []string, program string, args ...string) (*Session, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // a program of this repository
	cmd.Env = append(os.Environ(), env...)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)}) //nolint:gosec // small
	if err != nil {
		return nil, fmt.Errorf("%s in a terminal: %w", program, err)
	}
	s := &Session{cmd: cmd, terminal: terminal, began: time.Now(), read: make(chan struct{}), cast: Cast{Width: width, Height: height, Title: title}}
	go s.record()
	return s, nil
}

func (s *Session) record() {
	defer close(s.read)
	buf := make([]byte, 1<<16)
	var cut string // the start of a character that is not complete yet
	for {
		n, err := s.terminal.Read(buf)
		data := cut + string(buf[:n])
		cut = ""
		if whole := strings.ToValidUTF8(data, ""); err == nil && whole != data && strings.HasPrefix(data, whole) {
			data, cut = whole, data[len(whole):]
		}
		s.mu.Lock()
		if data != "" {
			s.cast.Outputs = append(s.cast.Outputs, Output{time.Since(s.began), data})
		}
		s.mu.Unlock()
		if err != nil {
			return // Linux returns EIO when the program has ended
		}
	}
}

// Press sends keys to the program.
func (s *Session) Press(keys string) error {
	_, err := io.WriteString(s.terminal, keys)
	return err
}

// AwaitText waits until a text is on the screen.
func (s *Session) AwaitText(ctx context.Context, text string) error {
	for ended := false; ; {
		s.mu.Lock()
		c := s.cast
		s.mu.Unlock()
		screen := c.LastScreen()
		if strings.Contains(screen, text) {
			return nil
		}
		if ended {
			return fmt.Errorf("%q is not on the screen, and the program has ended:\n%s", text, screen)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%q is not on the screen: %w:\n%s", text, context.Cause(ctx), screen)
		case <-s.read:
			ended = true // look once more, at all of its output
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Finish waits for the end of the program and returns the cast.
func (s *Session) Finish() (*Cast, error) {
	<-s.read
	err := errors.Join(s.cmd.Wait(), s.terminal.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	return &s.cast, err
}
