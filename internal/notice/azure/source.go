package azure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// DefaultInterval is the polling interval that Microsoft recommends. A Spot notice may give 30 s or less.
const DefaultInterval = time.Second

// Fetcher reads the current Scheduled Events document. [Client] implements it.
type Fetcher interface {
	Fetch(ctx context.Context) (Document, error)
}

// Source polls the notices of one instance.
type Source struct {
	*poll.Source

	fetcher      Fetcher
	resource     string
	lastDocument Document // the last that was read successfully
}

// SourceOptions configures a [Source]. Fetcher and Resource are required.
type SourceOptions struct {
	Fetcher Fetcher
	// Resource is the instance's name in the service's terms; see [ResourceName].
	Resource string
	// Interval is the time from the start of one poll to the start of the next; 0 is DefaultInterval.
	Interval time.Duration
	// ClockAhead returns how far the instance's clock is ahead of the service's; nil is 0. See [Client.ClockAhead].
	ClockAhead func() time.Duration
	Observer   poll.Observer // may be nil
	Log        *slog.Logger  // may be nil
}

// NewSource validates the options and returns a source. An error names the option, its value and what is allowed.
func NewSource(o SourceOptions) (*Source, error) {
	switch {
	case o.Fetcher == nil:
		return nil, errors.New("fetcher: is missing")
	case o.Resource == "":
		return nil, errors.New("resource name: is empty, want the instance's name as in Scheduled Events")
	case o.Interval < 0:
		return nil, fmt.Errorf("poll interval: %s: want more than 0", o.Interval)
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	s := &Source{fetcher: o.Fetcher, resource: o.Resource}
	var err error
	s.Source, err = poll.NewSource(poll.Options{
		Name: SourceName, Read: s.read, Interval: o.Interval, ClockAhead: o.ClockAhead, Observer: o.Observer, Log: o.Log,
	})
	return s, err
}

// Resource returns the name of the instance that this source watches.
func (s *Source) Resource() string { return s.resource }

// read reads the document once. An unchanged document is not parsed and allocates nothing.
func (s *Source) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	document, err := s.fetcher.Fetch(ctx)
	if err != nil || s.lastDocument != nil && bytes.Equal(document, s.lastDocument) {
		return notice.Snapshot{}, false, err
	}
	if snapshot, err = document.ToSnapshot(s.resource, time.Now()); err != nil {
		return notice.Snapshot{}, false, err
	}
	s.lastDocument = document
	return snapshot, true, nil
}
