package aws

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// InstanceIDPath is the path of the instance's ID.
const InstanceIDPath = "/latest/meta-data/instance-id"

// The paths of notices.
const (
	spotPath      = "/latest/meta-data/spot/instance-action"
	rebalancePath = "/latest/meta-data/events/recommendations/rebalance"
	eventsPath    = "/latest/meta-data/events/maintenance/scheduled"
	historyPath   = "/latest/meta-data/events/maintenance/history"
	asgPath       = "/latest/meta-data/autoscaling/target-lifecycle-state"
)

// pathReader holds what the readers of all paths need.
type pathReader struct {
	client   *Client
	instance string
	log      *slog.Logger

	isRead   bool
	lastBody []byte // nil if there was none
}

// fetch reads a path. It reports whether the response differs from the last one. A missing document is a nil body.
func (r *pathReader) fetch(ctx context.Context, path string) (body []byte, changed bool, err error) {
	body, found, err := r.client.Get(ctx, path)
	if err != nil {
		return nil, false, err
	}
	if !found {
		body = nil
	}
	return body, !r.isRead || !bytes.Equal(body, r.lastBody) || (body == nil) != (r.lastBody == nil), nil
}

// store remembers the last response that could be parsed.
func (r *pathReader) store(body []byte) { r.isRead, r.lastBody = true, body }

func (r *pathReader) newNotice(id string, t notice.Type) notice.Notice {
	return notice.Notice{
		ID: id, Source: SourceName, Type: t, Status: notice.Scheduled, Duration: -1, Resources: []string{r.instance}, NotApprovable: true,
	}
}

func newSnapshot(notices ...notice.Notice) notice.Snapshot {
	return notice.Snapshot{At: time.Now(), Notices: notices}
}

// warn adds a problem of a notice that is in the snapshot anyway.
func warn(s *notice.Snapshot, id string, err error) {
	if err != nil {
		s.Warnings = append(s.Warnings, notice.Problem{ID: id, NamesInstance: true, Err: err})
	}
}

// spotNoticePeriod is the time that AWS gives before it stops or terminates a Spot instance.
const spotNoticePeriod = 2 * time.Minute

// spotReader reads the interruption of a Spot instance. While the service has one, it is the same notice, even if its time
// changes.
type spotReader struct {
	pathReader
	memory
}

// memory keeps a notice that has no ID of its own, so that it is recognized when it is read again.
type memory struct {
	mu    sync.Mutex
	known notice.Notice // its ID is empty if there is none
	dirty bool          // an earlier agent process had another notice
}

// resume passes the notices that an earlier agent process was handling. It keeps the latest one of the type.
func (m *memory) resume(t notice.Type, notices []notice.Notice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range notices {
		if n.Type == t && n.ID != m.known.ID && !n.NotBefore.Before(m.known.NotBefore) {
			m.known, m.dirty = n, true
		}
	}
}

// readUnlessKnown reads a path, and parses the response if it has changed or if a notice was resumed since. It holds the
// lock while it calls parse.
func (m *memory) readUnlessKnown(
	ctx context.Context, r *pathReader, path string, parse func([]byte) (notice.Snapshot, error),
) (snapshot notice.Snapshot, changed bool, err error) {
	body, changed, err := r.fetch(ctx, path)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || !changed && !m.dirty {
		return notice.Snapshot{}, false, err
	}
	if snapshot, err = parse(body); err == nil {
		r.store(body)
		m.dirty = false
	}
	return snapshot, err == nil, err
}

func (r *spotReader) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	return r.readUnlessKnown(ctx, &r.pathReader, spotPath, r.parse)
}

// parse returns the notice in the response. Every JSON object is a notice, even without readable fields.
func (r *spotReader) parse(body []byte) (notice.Snapshot, error) {
	s := newSnapshot()
	if body == nil {
		r.known = notice.Notice{}
		return s, nil
	}
	var fields struct {
		Action json.RawMessage `json:"action"`
		Time   json.RawMessage `json:"time"`
	}
	if err := parseObject(spotPath, body, &fields); err != nil {
		return s, err
	}
	action, actionErr := parseText("action", fields.Action)
	at, timeErr := parseTime("time", fields.Time)
	if timeErr == nil && at.IsZero() {
		timeErr = fmt.Errorf("time is missing; assuming %s from now", spotNoticePeriod)
	}
	n := r.newNotice(newID("spot", spotPath, strings.ToLower(action)+" "+string(fields.Time)), notice.Preempt)
	n.NotBefore, n.Description = at, "Spot interruption: "+action
	if at.IsZero() {
		n.NoticePeriod = spotNoticePeriod
	}
	switch action = strings.ToLower(action); action {
	case "none":
		r.known = notice.Notice{}
		return s, nil
	case "terminate", "stop":
	case "hibernate":
		n.Status, timeErr = notice.Started, nil // a hibernation begins at once, without the two minutes
	default:
		if actionErr == nil {
			actionErr = fmt.Errorf("action: %s: want terminate, stop or hibernate; assuming terminate", poll.Quote(action))
		}
	}
	if k := r.known; k.ID != "" {
		n.ID = k.ID
		// AWS calls the time approximate. A time that is a little later must not extend the drain again and again.
		if moved := at.Sub(k.NotBefore); moved > 0 && moved < spotNoticePeriod {
			n.NotBefore = k.NotBefore
		}
	}
	r.known = n
	s.Notices = []notice.Notice{n}
	warn(&s, n.ID, actionErr)
	warn(&s, n.ID, timeErr)
	return s, nil
}

// rebalancePeriod is the least time between two recommendations that count as two notices.
const rebalancePeriod = time.Hour

// rebalanceReader reads the recommendation to replace a Spot instance. The service never withdraws it, and may renew it.
// A renewed recommendation is the same notice for an hour, so that the agent acts at most once in this time.
type rebalanceReader struct {
	pathReader
	memory
}

func (r *rebalanceReader) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	return r.readUnlessKnown(ctx, &r.pathReader, rebalancePath, r.parse)
}

func (r *rebalanceReader) parse(body []byte) (notice.Snapshot, error) {
	s := newSnapshot()
	if body == nil {
		return s, nil
	}
	var fields struct {
		NoticeTime json.RawMessage `json:"noticeTime"`
	}
	if err := parseObject(rebalancePath, body, &fields); err != nil {
		return s, err
	}
	at, err := parseTime("noticeTime", fields.NoticeTime)
	n := r.newNotice(newID("rebalance", rebalancePath, string(fields.NoticeTime)), notice.Rebalance)
	n.NotBefore, n.Description = at, "AWS recommends to replace the instance, because it is likely to be interrupted"
	if k := r.known; k.ID != "" && at.Sub(k.NotBefore) < rebalancePeriod {
		n.ID, n.NotBefore = k.ID, k.NotBefore
	}
	r.known = n
	s.Notices = []notice.Notice{n}
	warn(&s, n.ID, err)
	return s, nil
}

// asgReader reads the state that the Auto Scaling group moves the instance to.
type asgReader struct {
	pathReader

	hook        *Hook // may be nil
	hookTimeout time.Duration
	lastHook    hookState
}

// noticeID returns the ID of the notice. The service gives no time, and an instance is terminated only once.
func (r *asgReader) noticeID() string { return newID("asg", asgPath, r.instance) }

func (r *asgReader) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	body, changed, err := r.fetch(ctx, asgPath)
	if err != nil {
		return notice.Snapshot{}, false, err
	}
	var hook hookState
	if r.hook != nil {
		hook = r.hook.state()
	}
	if !changed && hook == r.lastHook {
		return notice.Snapshot{}, false, nil
	}
	if snapshot, err = r.parse(body, hook); err == nil {
		r.store(body)
		r.lastHook = hook
	}
	return snapshot, err == nil, err
}

// maxStateBytes limits the name of a state. The longest real one has 17 bytes.
const maxStateBytes = 64

func (r *asgReader) parse(body []byte, hook hookState) (notice.Snapshot, error) {
	s := newSnapshot()
	state := strings.TrimSpace(string(body))
	if len(state) > maxStateBytes || strings.ContainsAny(state, "<{\n") || body != nil && state == "" {
		return s, newError(poll.WrongShape, "%s: %s: want a state such as InService", asgPath, poll.Quote(state))
	}
	terminating := strings.EqualFold(state, "Terminated") || strings.EqualFold(state, "Warmed:Terminated")
	if r.hook != nil {
		r.hook.setTerminating(terminating)
	}
	if !terminating {
		return s, nil
	}
	n := r.newNotice(r.noticeID(), notice.Terminate)
	n.NotApprovable = r.hook == nil || hook.off
	n.NoticePeriod = r.hookTimeout
	if n.NoticePeriod == 0 {
		n.NoticePeriod = DefaultHookTimeout
		if hook.timeout > 0 {
			n.NoticePeriod = hook.timeout
		}
	}
	switch {
	case hook.missing:
		n.NoticePeriod = MinHookTimeout // AWS guarantees no time
	case hook.timeout > 0:
		n.NoticePeriod = min(n.NoticePeriod, MaxHold(hook.timeout))
	}
	n.Description = "the Auto Scaling group terminates the instance"
	s.Notices = []notice.Notice{n}
	return s, nil
}

// eventReader reads the scheduled events of the instance.
type eventReader struct {
	pathReader

	planner *poll.Planner
	resumed atomic.Bool     // since the last read
	events  notice.Snapshot // due or not
	next    time.Time       // when another event becomes due
}

func (r *eventReader) resume(notices []notice.Notice) {
	r.planner.Resume(notices)
	r.resumed.Store(true)
}

func (r *eventReader) read(ctx context.Context) (snapshot notice.Snapshot, changed bool, err error) {
	body, changed, err := r.fetch(ctx, eventsPath)
	if err != nil {
		return notice.Snapshot{}, false, err
	}
	now := time.Now().Add(-r.client.ClockAhead())
	resumed := r.resumed.Swap(false)
	if !changed && !resumed && (r.next.IsZero() || now.Before(r.next)) {
		return notice.Snapshot{}, false, nil
	}
	if changed {
		before := r.events.Notices
		if err := r.parse(body); err != nil {
			return notice.Snapshot{}, false, err
		}
		r.store(body)
		r.logEnded(ctx, before)
	}
	s := r.events
	s.At = time.Now()
	s.Notices, s.Planned, r.next = r.planner.Split(r.events.Notices, now)
	return s, true, nil
}

// scheduledEvent is one entry of the list of scheduled events.
type scheduledEvent struct {
	EventID     json.RawMessage `json:"EventId"`
	Code        json.RawMessage `json:"Code"`
	State       json.RawMessage `json:"State"`
	NotBefore   json.RawMessage `json:"NotBefore"`
	Description json.RawMessage `json:"Description"`
}

// maxEvents limits the number of events that are read. An instance has one or two at a time.
const maxEvents = 100

// parse stores the events in the response.
func (r *eventReader) parse(body []byte) error {
	var entries []json.RawMessage
	if body != nil {
		if err := json.Unmarshal(body, &entries); err != nil {
			class := poll.NotJSON
			if json.Valid(body) {
				class = poll.WrongShape
			}
			return newError(class, "%s: %s: want a list of events", eventsPath, poll.Quote(body))
		}
	}
	if len(entries) > maxEvents {
		return newError(poll.TooLarge, "%s: has %d events: want at most %d", eventsPath, len(entries), maxEvents)
	}
	var s notice.Snapshot
	for i, raw := range entries {
		r.parseEvent(fmt.Sprintf("scheduled[%d]", i), raw, &s)
	}
	r.events = s
	return nil
}

// parseEvent adds an event to the snapshot. A missing or wrong field is a warning, because the rest is enough to act on.
func (r *eventReader) parseEvent(path string, raw json.RawMessage, s *notice.Snapshot) {
	var e scheduledEvent
	if err := json.Unmarshal(raw, &e); err != nil || raw[0] != '{' {
		err := fmt.Errorf("%s: %s: want an object", path, poll.Compact(raw))
		s.Unreadable = append(s.Unreadable, notice.Problem{NamesInstance: true, Err: err})
		return
	}
	id, idErr := parseText(path+".EventId", e.EventID)
	description, descriptionErr := parseText(path+".Description", e.Description)
	state, stateErr := parseText(path+".State", e.State)
	if hasEndedEvent(state, description) {
		return
	}
	t, code, codeErr := parseCode(path+".Code", e.Code, description)
	at, timeErr := parseTime(path+".NotBefore", e.NotBefore)
	if timeErr == nil && at.IsZero() {
		timeErr = fmt.Errorf("%s.NotBefore is missing", path)
	}
	if id == "" || len(id) > maxIDBytes {
		if idErr == nil {
			idErr = fmt.Errorf("%s.EventId: %s: want an ID of at most %d bytes", path, poll.Quote(id), maxIDBytes)
		}
		id = newID("event", eventsPath, code+" "+string(e.NotBefore))
	}
	if slices.ContainsFunc(s.Notices, func(n notice.Notice) bool { return n.ID == id }) {
		warn(s, id, fmt.Errorf("%s.EventId: %s: is there twice; the first counts", path, poll.Quote(id)))
		return
	}
	n := r.newNotice(id, t)
	n.NotBefore, n.Description = at, strings.TrimSpace(code+": "+description)
	if at.IsZero() {
		n.NoticePeriod = eventNoticePeriod(t)
	}
	s.Notices = append(s.Notices, n)
	for _, err := range []error{idErr, descriptionErr, stateErr, codeErr, timeErr} {
		warn(s, id, err)
	}
}

// eventNoticePeriod returns the time for a drain if the time of an event is unknown. AWS announces these events at least
// a day ahead, but their notice may have been read late.
func eventNoticePeriod(t notice.Type) time.Duration {
	if t == notice.Terminate {
		return time.Hour
	}
	return 15 * time.Minute
}

// maxIDBytes is the maximum length of an EventId in bytes. A real one has about 32.
const maxIDBytes = 128

// hasEndedEvent reports whether an event that is still listed was cancelled or is over.
func hasEndedEvent(state, description string) bool {
	for _, end := range []string{"canceled", "cancelled", "completed"} {
		if strings.EqualFold(state, end) || strings.HasPrefix(strings.ToLower(description), "["+end+"]") {
			return true
		}
	}
	return false
}

// parseCode returns the code of an event, and the type of its notice.
func parseCode(path string, raw json.RawMessage, description string) (t notice.Type, code string, err error) {
	code, err = parseText(path, raw)
	t, isKnown := TypeOfEvent(code, description)
	if isKnown {
		return t, code, err
	}
	if err == nil {
		err = fmt.Errorf("%s: %s: want instance-stop, instance-retirement, instance-reboot, system-reboot or system-maintenance; "+
			"assuming a reboot", path, poll.Quote(code))
	}
	return t, poll.Quote(code), err
}

// TypeOfEvent returns the type of notice for a scheduled event. code is a code of the metadata service, such as system-reboot,
// or an eventTypeCode of AWS Health, such as AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED. An unknown code counts as a reboot: the node
// is drained just before, and restored afterwards.
//
// A maintenance of the power reboots the instance, and only a maintenance of the network keeps it running
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/schedevents_actions_maintenance.html). The code system-maintenance stands
// for both, so the description decides.
func TypeOfEvent(code, description string) (t notice.Type, isKnown bool) {
	code = strings.ToUpper(code)
	what := code + " " + strings.ToUpper(description)
	switch {
	case strings.Contains(code, "RETIREMENT"), strings.Contains(code, "STOP"), strings.Contains(code, "TERMINAT"):
		return notice.Terminate, true
	case strings.Contains(code, "MAINTENANCE") && !strings.Contains(code, "REBOOT") && strings.Contains(what, "NETWORK") && !strings.Contains(what, "POWER"):
		return notice.Freeze, true
	}
	return notice.Reboot, strings.Contains(code, "REBOOT") || strings.Contains(code, "MAINTENANCE")
}

// logEnded logs how the events that are not listed any more have ended. The service moves them to its history.
func (r *eventReader) logEnded(ctx context.Context, before []notice.Notice) {
	for _, n := range before {
		if slices.ContainsFunc(r.events.Notices, func(e notice.Notice) bool { return e.ID == n.ID }) {
			continue
		}
		r.log.Info("scheduled event is not listed any more", "id", n.ID, "type", n.Type, "history", r.findInHistory(ctx, n.ID))
	}
}

// findInHistory returns the state of an event in the history, or "unknown".
func (r *eventReader) findInHistory(ctx context.Context, id string) string {
	body, found, err := r.client.Get(ctx, historyPath)
	var entries []json.RawMessage
	if err != nil || !found || json.Unmarshal(body, &entries) != nil {
		return "unknown"
	}
	for _, raw := range entries {
		var e scheduledEvent
		if json.Unmarshal(raw, &e) != nil {
			continue
		}
		if got, err := parseText("", e.EventID); err == nil && got == id {
			state, _ := parseText("", e.State) // an unreadable state is unknown
			if state != "" {
				return strings.ToLower(state)
			}
		}
	}
	return "unknown"
}
