// Package external reads notices from a program, or from an HTTP URL, that the user provides. So the agent can serve a cloud
// without a source of its own. docs/notice-sources.md describes the format [APIVersion] for users.
package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	// DefaultInterval is the time from the start of one read to the start of the next.
	DefaultInterval = 2 * time.Second
	// DefaultTimeout limits one read or acknowledgement.
	DefaultTimeout = 10 * time.Second
	// MaxDocumentBytes limits the size of a document, in bytes.
	MaxDocumentBytes = 1 << 20
	// maxFailurePause is the longest pause between two reads while they fail. A Spot notice may give 30 s.
	maxFailurePause = 10 * time.Second
)

// Options configures a [Source]. Name, Location and Resource are required.
type Options struct {
	// Name is the value of [notice.Notice.Source] in the notices.
	Name string
	// Location is where the notices come from: "exec:" and the absolute path of a program, or an HTTP URL.
	Location string
	// Resource is the name of the agent's instance.
	Resource string
	// Interval and Timeout are DefaultInterval and DefaultTimeout if they are 0.
	Interval, Timeout time.Duration
	// Leads are how long before a planned interruption the agent acts.
	Leads poll.Leads
	// Wrap, if set, wraps the transport of HTTP requests to measure them.
	Wrap     func(http.RoundTripper) http.RoundTripper
	Observer poll.Observer // may be nil
	Log      *slog.Logger  // may be nil
}

// Source reads notices from a program or an HTTP URL.
type Source struct {
	*poll.Source

	options Options
	backend backend

	planner *poll.Planner
	ahead   func() time.Duration

	document []byte          // of the last good read
	parsed   notice.Snapshot // of the document, before the planned notices are separated
	last     notice.Snapshot
}

// backend is a program or an HTTP URL. Every error is an [*poll.Error].
type backend interface {
	// read returns the document.
	read(ctx context.Context) ([]byte, error)
	acknowledge(ctx context.Context, id string) error
}

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$`)

// reservedNames are the names of Slipway's other sources.
var reservedNames = regexp.MustCompile(`^(azure|aws|` + notice.AWSQueue + `|gce-.*|gke|condition|request)$`)

const execPrefix = "exec:"

// ValidateLocation returns an error if name and location cannot be a source. The error names the value and what is allowed.
func ValidateLocation(name, location string) error {
	switch {
	case !validName.MatchString(name):
		return fmt.Errorf("name %q: want at most 20 lower-case letters, digits and hyphens, such as vsphere", name)
	case reservedNames.MatchString(name):
		return fmt.Errorf("name %q: is the name of another source, want another one", name)
	}
	if path, isExec := strings.CutPrefix(location, execPrefix); isExec {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q: want exec: and the absolute path of a program", name, location)
		}
		return nil
	}
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%s: %q: want exec: and the absolute path of a program, or a URL such as http://127.0.0.1:8080/notices", name, location)
	}
	return nil
}

// NewSource validates the options and returns a source. An error names the option, its value and what is allowed.
func NewSource(o Options) (*Source, error) {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if err := ValidateLocation(o.Name, o.Location); err != nil {
		return nil, err
	}
	switch {
	case o.Resource == "":
		return nil, errors.New("resource name: is empty, want the name of the instance")
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout: %s: want more than 0", o.Timeout)
	}
	s := &Source{options: o, planner: poll.NewPlanner(o.Leads)}
	s.ahead = func() time.Duration { return 0 } // a program does not tell its time
	if path, isExec := strings.CutPrefix(o.Location, execPrefix); isExec {
		s.backend = program{path: path, service: o.Name, timeout: o.Timeout, children: &orphans{}}
	} else {
		client := poll.NewClient(poll.ClientOptions{Service: o.Name, Timeout: o.Timeout, MaxBytes: MaxDocumentBytes, Wrap: o.Wrap})
		s.backend, s.ahead = httpService{client, o.Location}, client.ClockAhead
	}
	var err error
	s.Source, err = poll.NewSource(poll.Options{
		Name: o.Name, Read: s.read, Interval: o.Interval, MaxBackoff: maxFailurePause, ClockAhead: s.ahead, Observer: o.Observer, Log: o.Log,
	})
	return s, err
}

// read reads the document once. It is a [poll.ReadFunc].
func (s *Source) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	document, err := s.backend.read(ctx)
	if err != nil {
		return notice.Snapshot{}, false, err
	}
	now := time.Now()
	isNew := s.document == nil || !bytes.Equal(document, s.document)
	if isNew {
		parsed, err := parseDocument(s.options.Name, s.options.Resource, document, now)
		if err != nil {
			return notice.Snapshot{}, false, err
		}
		s.document, s.parsed = document, parsed
	}
	snapshot = s.parsed
	snapshot.Notices, snapshot.Planned = s.split(s.parsed.Notices, now)
	if !isNew && reflect.DeepEqual(snapshot, s.last) {
		return notice.Snapshot{}, false, nil
	}
	s.last = snapshot
	snapshot.At = now
	return snapshot, true, nil
}

// split separates the planned notices. A Preempt is never planned: it comes too short before its time to wait.
func (s *Source) split(all []notice.Notice, now time.Time) (due, planned []notice.Notice) {
	var later []notice.Notice
	for _, n := range all {
		if n.Type == notice.Preempt {
			due = append(due, n)
		} else {
			later = append(later, n)
		}
	}
	later, planned, _ = s.planner.Split(later, now.Add(-s.ahead()))
	due = append(due, later...)
	slices.SortFunc(due, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return due, planned
}

// ResumeNotices passes the notices that an earlier agent process was acting on.
func (s *Source) ResumeNotices(notices []notice.Notice) { s.planner.Resume(notices) }

// Approve acknowledges notices to the program or the URL.
func (s *Source) Approve(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := s.backend.acknowledge(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
