package gcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	// DefaultEndpoint has the address of the metadata server, because its name may not resolve in a pod.
	DefaultEndpoint = "http://169.254.169.254/computeMetadata/v1/"
	// DefaultInterval is the shortest time between the starts of two requests for a key. The server answers a change at once.
	DefaultInterval = time.Second
	// DefaultTimeout limits a request beyond the time that the server is asked to wait.
	DefaultTimeout = 5 * time.Second
	// maxWait is how long the server waits for a change before it responds with the same value. A connection that broke
	// without a sign is noticed after maxWait and the timeout. That has to be less than the 30 s of a preemption.
	maxWait = 10 * time.Second
	// maxValueBytes limits the size of a value, in bytes. Real values have less than 1 KiB.
	maxValueBytes = 64 << 10
)

// Options configures the sources of one VM. Resource is required.
type Options struct {
	// Endpoint is the URL of the metadata server up to its version; empty is DefaultEndpoint.
	Endpoint string
	// Resource is the VM's name, for [notice.Notice.Resources].
	Resource string
	// Interval and Timeout are DefaultInterval and DefaultTimeout if they are 0.
	Interval, Timeout time.Duration
	// Leads are how long before a planned maintenance the agent acts.
	Leads poll.Leads
	// Wrap, if set, wraps the transport to measure requests.
	Wrap     func(http.RoundTripper) http.RoundTripper
	Observer poll.Observer // may be nil
	Log      *slog.Logger  // may be nil
}

// Source reads one key of the metadata server.
type Source struct {
	*poll.Source

	client *poll.Client
	url    string
	log    *slog.Logger
	// record and planner are nil except for the key of planned maintenances. The server has no information about that key for
	// most VMs.
	record  *maintenanceRecord
	planner *poll.Planner
	parse   func(value string, now time.Time) (notice.Snapshot, error)

	etag  string // of the last good response
	value string // the last that was parsed; empty before the first
	last  notice.Snapshot
}

// sources is what the sources of one VM share.
type sources struct {
	Options

	client  *poll.Client
	planner *poll.Planner
	planned atomic.Pointer[plannedMaintenance] // nil if none is known
}

// NewSources validates the options and returns the sources of a VM: for its preemption, for a maintenance of its host, and
// for a planned maintenance. An error names the option, its value and what is allowed.
func NewSources(o Options) ([]*Source, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	switch {
	case o.Resource == "":
		return nil, errors.New("resource name: is empty, want the name of the VM")
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout: %s: want more than 0", o.Timeout)
	}
	if err := checkEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &sources{Options: o, planner: poll.NewPlanner(o.Leads), client: poll.NewClient(poll.ClientOptions{
		Service: "Compute Engine metadata", Timeout: maxWait + o.Timeout, MaxBytes: maxValueBytes, Wrap: o.Wrap,
	})}
	all := []*Source{
		{url: "instance/preempted", parse: s.parsePreemption},
		{url: "instance/maintenance-event", parse: s.parseMaintenance},
		{url: "instance/upcoming-maintenance?alt=json", parse: s.parsePlanned, planner: s.planner, record: &maintenanceRecord{planned: &s.planned}},
	}
	for i, name := range []string{PreemptionSource, MaintenanceSource, PlannedSource} {
		source := all[i]
		source.log, source.client, source.url = o.Log, s.client, strings.TrimSuffix(o.Endpoint, "/")+"/"+source.url
		var err error
		if source.Source, err = poll.NewSource(poll.Options{
			Name: name, Read: source.read, Interval: o.Interval, ClockAhead: s.client.ClockAhead, Observer: o.Observer, Log: o.Log,
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("endpoint: %q: want the URL of the metadata server, such as %s", endpoint, DefaultEndpoint)
	}
	return nil
}

// ResumeNotices passes the notices that an earlier agent process was acting on.
func (s *Source) ResumeNotices(notices []notice.Notice) {
	if s.planner != nil {
		s.planner.Resume(notices)
		s.record.resume(notices)
	}
}

// read reads the key once. If the value is known, the server responds when it changes, or after maxWait. Then read
// requests the next poll at once. It is a [poll.ReadFunc].
func (s *Source) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	began, isFirst := time.Now(), s.value == ""
	value, err := s.fetch(ctx)
	if err == nil {
		snapshot, err = s.parse(value, time.Now())
	}
	switch {
	case s.record != nil && hasNoInformation(err):
		elapsed.Sleep(ctx, time.Until(began.Add(maxWait)))
		s.endLostMaintenance()
		if value, err = s.value, nil; value != "" {
			snapshot, err = s.parse(value, time.Now())
		}
	case s.record != nil && err == nil:
		s.record.observeRead()
	}
	if time.Since(began) >= DefaultInterval {
		s.RequestPoll()
	}
	if err != nil {
		s.etag = ""
		return notice.Snapshot{}, false, s.toPollError(err)
	}
	if value == "" {
		return notice.Snapshot{}, false, nil
	}
	s.value = value
	if !isFirst && reflect.DeepEqual(snapshot, s.last) {
		return notice.Snapshot{}, false, nil
	}
	s.last = snapshot
	snapshot.At = time.Now()
	return snapshot, true, nil
}

// endLostMaintenance ends a planned maintenance that the server has no information about, once it is over.
func (s *Source) endLostMaintenance() {
	over, window := s.record.observeLost(time.Now().Add(-s.client.ClockAhead()))
	if !over {
		return
	}
	s.log.Warn("a planned maintenance counts as over: its window has passed, the VM runs, and the metadata server has no information about it",
		"source", s.Name(), "window", window, "passed", lostRecordDelay.String())
	s.value = noMaintenance
	s.record.observeRead()
}

// toPollError returns the error of a request, or an error of class [poll.WrongShape] for a value that cannot be parsed.
func (s *Source) toPollError(err error) error {
	if failed := (*poll.Error)(nil); errors.As(err, &failed) {
		return failed
	}
	return s.client.NewError(poll.WrongShape, err)
}

// fetch returns the value of the key. After a failure it does not wait for a change, so that the end of the failure is
// noticed at once.
func (s *Source) fetch(ctx context.Context) (value string, err error) {
	target := s.url
	if s.etag != "" {
		separator := "?"
		if strings.Contains(target, "?") {
			separator = "&"
		}
		target += separator + url.Values{
			"wait_for_change": {"true"}, "timeout_sec": {strconv.Itoa(int(maxWait / time.Second))}, "last_etag": {s.etag},
		}.Encode()
	}
	s.etag = ""
	response, err := s.client.Send(ctx, http.MethodGet, target, http.Header{"Metadata-Flavor": {"Google"}}, nil)
	if err != nil {
		return "", err
	}
	if err := response.Err(); err != nil {
		return "", err
	}
	value = strings.TrimSpace(string(response.Body))
	if value == "" {
		return "", s.client.NewError(poll.WrongShape, fmt.Errorf("%s: the response is empty", s.url))
	}
	s.etag = response.Header.Get("ETag")
	return value, nil
}

// hasNoInformation reports whether the server said that it has no information about a key. It does so with 404 or 503. A
// maintenance may exist anyway.
func hasNoInformation(err error) bool {
	failed := &poll.Error{}
	return errors.Is(err, errNoInformation) ||
		errors.As(err, &failed) && (failed.Status == http.StatusNotFound || failed.Status == http.StatusServiceUnavailable)
}

// newNotice returns a notice of this VM. The metadata server accepts no approvals.
func (s *sources) newNotice(source, id string, kind notice.Type, description string) notice.Notice {
	return notice.Notice{
		ID: id, Source: source, Type: kind, Status: notice.Scheduled, Resources: []string{s.Resource},
		Duration: poll.UnknownDuration, Description: description, NotApprovable: true,
	}
}

func (s *sources) parsePreemption(value string, _ time.Time) (notice.Snapshot, error) {
	on, err := parsePreempted(value)
	if err != nil || !on {
		return notice.Snapshot{}, err
	}
	// The 30 s of a preemption are the usual notice of the type Preempt.
	n := s.newNotice(PreemptionSource, preemptionID, notice.Preempt, "Compute Engine preempts the Spot VM")
	return notice.Snapshot{Notices: []notice.Notice{n}}, nil
}

func (s *sources) parseMaintenance(value string, now time.Time) (notice.Snapshot, error) {
	kind, warning, err := parseMaintenanceEvent(value)
	if err != nil || kind == "" {
		return notice.Snapshot{}, err
	}
	n := s.newNotice(MaintenanceSource, maintenanceID, kind, "host maintenance: "+value)
	n.LiveMigration = kind == notice.Freeze
	n.NoticePeriod = maintenanceNotice
	switch m := s.planned.Load(); {
	case m == nil || kind != notice.Redeploy:
	case m.Ongoing: // perhaps before its planned time, which the agent may already know
		n.HasBegun = true
	default:
		if left := m.Start.Add(s.client.ClockAhead()).Sub(now); left > maintenanceNotice && left <= gpuMaintenanceNotice {
			n.NotBefore = m.Start
		}
	}
	snapshot := notice.Snapshot{Notices: []notice.Notice{n}}
	if warning != nil {
		snapshot.Warnings = []notice.Problem{{ID: n.ID, NamesInstance: true, Err: warning}}
	}
	return snapshot, nil
}

func (s *sources) parsePlanned(value string, now time.Time) (notice.Snapshot, error) {
	m, err := parsePlannedMaintenance("instance/upcoming-maintenance", value)
	if err != nil {
		return notice.Snapshot{}, err
	}
	s.planned.Store(m)
	var snapshot notice.Snapshot
	if m != nil {
		snapshot = m.toSnapshot(s.newNotice(PlannedSource, plannedID, notice.Redeploy, ""))
	}
	snapshot.Notices, snapshot.Planned, _ = s.planner.Split(snapshot.Notices, now.Add(-s.client.ClockAhead()))
	return snapshot, nil
}

// toSnapshot returns a snapshot with the notice n for the maintenance. A maintenance that has begun stops the VM some minutes
// later, so its notice has not Started.
func (m *plannedMaintenance) toSnapshot(n notice.Notice) notice.Snapshot {
	n.Description = strings.TrimSuffix("planned host maintenance: "+m.Reasons, ": ")
	n.WindowEnd = m.windowEnd()
	if n.HasBegun = m.Ongoing; !m.Ongoing {
		n.NotBefore = m.Start
	}
	snapshot := notice.Snapshot{Notices: []notice.Notice{n}}
	for _, err := range m.Warnings {
		snapshot.Warnings = append(snapshot.Warnings, notice.Problem{ID: n.ID, NamesInstance: true, Err: err})
	}
	return snapshot
}
