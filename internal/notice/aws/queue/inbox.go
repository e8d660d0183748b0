package queue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	// maxBatch is the largest number of messages in one request to SQS.
	maxBatch = 10
	// maxTracked is how many instances the messages may name that are handled at once. An event may name 1000, and SQS hides
	// at most 120000 messages.
	maxTracked = 10000
	// firstWaitTime is how long SQS waits for messages in the first request, at most. Its response shows that the queue can be
	// read.
	firstWaitTime = time.Second
	// releaseTimeout limits how long the end of Run waits for SQS, and releaseRequests is how many requests run at once then.
	releaseTimeout  = 5 * time.Second
	releaseRequests = 10
	// maxReleases is how often a message is made visible at once. A process that restarts again and again would otherwise use up
	// the deliveries that the redrive policy allows.
	maxReleases = 5
	// sqsRequestTimeout is the timeout of a request, in addition to the time that SQS waits for messages.
	sqsRequestTimeout = 15 * time.Second
	// minReceivePause and maxReceivePause limit the pause after a failed request for messages. A notice may give two
	// minutes.
	minReceivePause = time.Second
	maxReceivePause = 15 * time.Second
	// writeInterval is the longest pause between two checks which messages have to be deleted or stay hidden.
	writeInterval = time.Second
	// maxReported is how many unreadable messages are remembered, so that each is reported once.
	maxReported = 10000
)

// InboxOptions configures an [Inbox]. All fields are required, unless their comment says something else.
type InboxOptions struct {
	SQS     SQS
	Config  Config
	Metrics *Metrics
	Log     *slog.Logger
	// ReadOnly changes nothing in the queue. SQS then delivers each message again and again.
	ReadOnly bool
	// OnUnreadable is called once for each message that cannot be parsed; nil is not called.
	OnUnreadable func(m Message, err error)
	// Beat is called at every request for messages, and OnReceive at every response; nil is not called.
	Beat, OnReceive func()
	// Wall is as in [poll.Clock]; nil is the clock of the system.
	Wall func(t time.Time) time.Time
}

// Inbox receives the messages of a queue. It hides a message from other receivers until the message is deleted or
// parked. If the process dies, SQS delivers the message again. The Inbox is safe for concurrent use.
type Inbox struct {
	options InboxOptions
	wake    chan struct{}
	clock   poll.Clock

	mu       sync.Mutex
	tracked  map[string]*trackedMessage // by message ID, without their bodies, which may be large
	reported map[string]bool            // unreadable messages, by message ID
}

// trackedMessage is a message that SQS hides for this process.
type trackedMessage struct {
	Message

	kind      string
	instances int // that it names
	// hiddenUntil is when SQS delivers the message again. nextTry is when a failed request for it is repeated.
	hiddenUntil, nextTry time.Time
	// isHandled is true if the message has to be deleted. isParked is true if it is put back into the queue for a while.
	isHandled, isParked bool
	// maxParked is the longest time that it is hidden then; 0 is Config.ParkedVisibility.
	maxParked time.Duration
}

// NewInbox returns an inbox.
func NewInbox(o InboxOptions) *Inbox {
	return &Inbox{options: o, clock: poll.Clock{Wall: o.Wall}, wake: make(chan struct{}, 1), tracked: map[string]*trackedMessage{}, reported: map[string]bool{}}
}

// Run receives messages until ctx ends. It passes each message that names instances to handle, once until the message is
// deleted or parked. It deletes messages that require no action, and parks unreadable ones. At its end it makes the messages
// that are not handled visible to other receivers.
func (b *Inbox) Run(ctx context.Context, handle func(m Message, e Event)) {
	var group sync.WaitGroup
	defer b.release(context.WithoutCancel(ctx))
	defer group.Wait()
	group.Go(func() { b.write(ctx) })
	pause, wait := minReceivePause, min(b.options.Config.WaitTime, firstWaitTime)
	for ctx.Err() == nil {
		if b.options.Beat != nil {
			b.options.Beat()
		}
		if b.IsFull() {
			elapsed.Sleep(ctx, writeInterval)
			continue
		}
		began := time.Now()
		received, err := b.receive(ctx, wait)
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			b.options.Metrics.ReceiveFailed.Inc()
			b.options.Log.Error("cannot receive messages, will retry", "queue", b.options.Config.URL, "err", err, "retryAfter", pause.String())
			elapsed.Sleep(ctx, pause)
			pause = min(2*pause, maxReceivePause)
			continue
		}
		pause, wait = minReceivePause, b.options.Config.WaitTime
		b.options.Metrics.LastReceive.Set(toUnixSeconds(time.Now()))
		if b.options.OnReceive != nil {
			b.options.OnReceive()
		}
		for _, m := range received {
			if e, isNew := b.track(m, began); isNew {
				m.Body = "" // it would stay in memory until the message is handled
				handle(m, e)
			}
		}
	}
}

// ClockAhead returns how far this process's clock is ahead of SQS's clock; negative is behind.
func (b *Inbox) ClockAhead() time.Duration { return b.clock.Ahead() }

// ToClockOfSQS returns a time of time.Now by SQS's clock, as [poll.Clock.ToServiceTime].
func (b *Inbox) ToClockOfSQS(t time.Time) time.Time { return b.clock.ToServiceTime(t) }

// KnowsClock reports whether SQS has told its time.
func (b *Inbox) KnowsClock() bool { return b.clock.IsKnown() }

// IsFull reports whether so many messages are handled that no more are received. Park makes room.
func (b *Inbox) IsFull() bool { return b.countInstances() >= maxTracked }

// countInstances returns how many instances the tracked messages name, where each message counts as one at least.
func (b *Inbox) countInstances() (count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tracked {
		count += max(1, t.instances)
	}
	return count
}

func (b *Inbox) receive(ctx context.Context, wait time.Duration) ([]Message, error) {
	c := b.options.Config
	ctx, cancel := context.WithTimeout(ctx, wait+sqsRequestTimeout)
	defer cancel()
	began := time.Now()
	out, err := b.options.SQS.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &c.URL, MaxNumberOfMessages: maxBatch, WaitTimeSeconds: seconds(wait), VisibilityTimeout: seconds(c.Visibility),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameApproximateReceiveCount,
		},
	})
	if err != nil {
		return nil, err
	}
	if date, known := awsmiddleware.GetServerTime(out.ResultMetadata); known {
		was := b.clock.Ahead()
		b.clock.Update(began, time.Now(), date)
		if ahead := b.clock.Ahead(); ahead != was {
			b.options.Log.Warn("the clock of this process differs from that of SQS; the times of notices are corrected", "ahead", ahead.String())
		}
	}
	all := make([]Message, 0, len(out.Messages))
	for _, m := range out.Messages {
		read := Message{ID: aws.ToString(m.MessageId), ReceiptHandle: aws.ToString(m.ReceiptHandle), Body: aws.ToString(m.Body), Sent: b.ToClockOfSQS(time.Now())}
		if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
			read.Sent = time.UnixMilli(ms)
		}
		read.Receives, _ = strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]) // 0 is unknown
		all = append(all, read)
	}
	return all, nil
}

// seconds converts a duration to the whole seconds of a request, rounded up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// track stores a delivery. It returns the event and true if the caller has to handle the message.
func (b *Inbox) track(m Message, deliveredAt time.Time) (e Event, isNew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hiddenUntil := deliveredAt.Add(b.options.Config.Visibility)
	if known := b.tracked[m.ID]; known != nil { // SQS has delivered it again: only its newest handle is valid
		known.ReceiptHandle, known.Receives, known.hiddenUntil, known.nextTry = m.ReceiptHandle, m.Receives, hiddenUntil, time.Time{}
		return Event{}, false
	}
	e, err := Parse(m.Body)
	t := &trackedMessage{Message: m, kind: string(e.Kind), instances: len(e.Instances), hiddenUntil: hiddenUntil}
	t.Body = ""
	b.tracked[m.ID] = t
	log := b.options.Log.With("message", m.ID, "queue", b.options.Config.URL)
	switch {
	case err != nil:
		t.kind, t.isParked = Unreadable, true
		if b.reported[m.ID] {
			break
		}
		if len(b.reported) >= maxReported {
			clear(b.reported)
		}
		b.reported[m.ID] = true
		log.Error("cannot read a message; it is left to the redrive policy of the queue", "err", err)
		if b.options.OnUnreadable != nil {
			b.options.OnUnreadable(m, err)
		}
	case len(e.Instances) == 0:
		t.isHandled = true
		log.Info("a message requires no action", "kind", e.Kind, "reason", e.Reason)
	case slices.Contains(b.options.Config.IgnoredKinds, string(e.Kind)):
		t.isHandled = true
		log.Info("a message is ignored as configured", "kind", e.Kind, "instances", e.Instances)
	default:
		isNew = true
		log.Info("message", "kind", e.Kind, "instances", e.Instances, "sent", m.Sent, "receives", m.Receives)
	}
	b.options.Metrics.Received.With(t.kind).Inc()
	if !isNew {
		b.wakeWriter()
	}
	return e, isNew
}

func (b *Inbox) wakeWriter() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Delete deletes a handled message from the queue. It retries until SQS has deleted the message.
func (b *Inbox) Delete(messageID string) {
	b.writeNow(messageID, func(t *trackedMessage) { t.isHandled = true })
}

// Park puts a message back into the queue for a while, at most for longest or Config.ParkedVisibility. SQS then delivers it again.
// If longest is 0, only Config.ParkedVisibility is the limit.
func (b *Inbox) Park(messageID string, longest time.Duration) {
	b.writeNow(messageID, func(t *trackedMessage) { t.isParked, t.maxParked = true, longest })
}

// writeNow changes a tracked message, and sends the request for it at once. It ignores a message that is not tracked.
func (b *Inbox) writeNow(messageID string, change func(*trackedMessage)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.tracked[messageID]; t != nil {
		change(t)
		t.nextTry = time.Time{}
		b.wakeWriter()
	}
}

// Oldest returns when the oldest message that is not handled yet was sent, by SQS's clock, and the number of such messages.
func (b *Inbox) Oldest() (sent time.Time, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tracked {
		if t.isHandled || t.isParked {
			continue
		}
		count++
		if !t.Sent.IsZero() && (sent.IsZero() || t.Sent.Before(sent)) {
			sent = t.Sent
		}
	}
	return sent, count
}

// write deletes, parks and hides messages until ctx ends.
func (b *Inbox) write(ctx context.Context) {
	ticker := time.NewTicker(writeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-ticker.C:
		}
		deleted, changed := b.selectWrites(time.Now(), false)
		if b.options.ReadOnly {
			b.forget(append(deleted, changed...))
			continue
		}
		for batch := range slices.Chunk(deleted, maxBatch) {
			b.deleteBatch(ctx, batch)
		}
		for batch := range slices.Chunk(changed, maxBatch) {
			b.changeVisibility(ctx, batch)
		}
	}
}

// release deletes the handled messages, and makes the others visible at once: another process may wait for them. It takes at
// most releaseTimeout. A message that it does not reach stays hidden until Config.Visibility has passed.
func (b *Inbox) release(ctx context.Context) {
	if b.options.ReadOnly {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	deleted, changed := b.selectWrites(time.Now(), true)
	free := make(chan struct{}, releaseRequests)
	var group sync.WaitGroup
	run := func(write func(context.Context, []writeRequest), batch []writeRequest) {
		free <- struct{}{}
		group.Go(func() {
			write(ctx, batch)
			<-free
		})
	}
	for batch := range slices.Chunk(deleted, maxBatch) {
		run(b.deleteBatch, batch)
	}
	for batch := range slices.Chunk(changed, maxBatch) {
		run(b.changeVisibility, batch)
	}
	group.Wait()
	log := b.options.Log.With("queue", b.options.Config.URL)
	if ctx.Err() != nil {
		log.Warn("stopped before SQS has made all messages visible; the others stay hidden for a while", "atMost", b.options.Config.Visibility.String())
		return
	}
	log.Info("stopped receiving messages; those that are not handled become visible again, at once if SQS has accepted it")
}

// writeRequest is one entry of a batch.
type writeRequest struct {
	id, handle, kind string
	visibility       time.Duration
	isParked         bool
}

// selectWrites returns the messages to delete, and those with a visibility to change. isEnd is true at the end of Run.
func (b *Inbox) selectWrites(now time.Time, isEnd bool) (deleted, changed []writeRequest) {
	c := b.options.Config
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, t := range b.tracked {
		w := writeRequest{id: id, handle: t.ReceiptHandle, kind: t.kind, visibility: c.Visibility, isParked: t.isParked}
		switch {
		case now.Before(t.nextTry) && !isEnd:
		case t.isHandled:
			deleted = append(deleted, w)
		case t.isParked:
			// Each delivery doubles the pause, so that the message does not circulate quickly.
			longest := min(c.ParkedVisibility, cmp.Or(t.maxParked, c.ParkedVisibility))
			w.visibility = min(longest, c.Visibility<<min(max(t.Receives-1, 0), 16)) // 12 h is the most, so nothing overflows
			changed = append(changed, w)
		case isEnd && t.Receives > maxReleases:
		case isEnd:
			w.visibility = 0
			changed = append(changed, w)
		case t.hiddenUntil.Sub(now) < c.Visibility/2 && !b.options.ReadOnly:
			changed = append(changed, w)
		}
	}
	return deleted, changed
}

func (b *Inbox) forget(all []writeRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range all {
		delete(b.tracked, w.id)
	}
}

func (b *Inbox) deleteBatch(ctx context.Context, batch []writeRequest) {
	var entries []types.DeleteMessageBatchRequestEntry
	for i, w := range batch {
		entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &w.handle})
	}
	limited, cancel := context.WithTimeout(ctx, sqsRequestTimeout)
	defer cancel()
	out, err := b.options.SQS.DeleteMessageBatch(limited, &sqs.DeleteMessageBatchInput{QueueUrl: &b.options.Config.URL, Entries: entries})
	failed := b.failedEntries(ctx, "delete", batch, err, func() []types.BatchResultErrorEntry { return out.Failed })
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range batch {
		if failed[i] == nil {
			delete(b.tracked, w.id)
			b.options.Metrics.Deleted.With(w.kind).Inc()
		}
	}
}

func (b *Inbox) changeVisibility(ctx context.Context, batch []writeRequest) {
	var entries []types.ChangeMessageVisibilityBatchRequestEntry
	for i, w := range batch {
		entries = append(entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &w.handle, VisibilityTimeout: seconds(w.visibility),
		})
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, sqsRequestTimeout)
	defer cancel()
	out, err := b.options.SQS.ChangeMessageVisibilityBatch(limited, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &b.options.Config.URL, Entries: entries})
	failed := b.failedEntries(ctx, "hide", batch, err, func() []types.BatchResultErrorEntry { return out.Failed })
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range batch {
		t := b.tracked[w.id]
		switch {
		case w.isParked: // if the request failed, SQS delivers it after the old time
			b.options.Metrics.Parked.With(w.kind).Inc()
			delete(b.tracked, w.id)
		case t != nil && failed[i] == nil:
			t.hiddenUntil = began.Add(w.visibility)
		}
	}
}

// failedEntries returns the error of each failed entry of a batch, by its index, and logs the first. A failed entry is
// repeated later, with the newest receipt handle.
func (b *Inbox) failedEntries(ctx context.Context, verb string, batch []writeRequest, err error, entries func() []types.BatchResultErrorEntry) map[int]error {
	failed := map[int]error{}
	if err != nil {
		for i := range batch {
			failed[i] = err
		}
	} else {
		for _, f := range entries() {
			if i, err := strconv.Atoi(aws.ToString(f.Id)); err == nil {
				failed[i] = fmt.Errorf("%s: %s", aws.ToString(f.Code), aws.ToString(f.Message))
			}
		}
	}
	if len(failed) == 0 || ctx.Err() != nil {
		return failed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now, isLogged := time.Now(), false
	for i, w := range batch {
		if failed[i] == nil {
			continue
		}
		if !isLogged {
			isLogged = true
			b.options.Log.Warn("cannot "+verb+" messages, will retry", "queue", b.options.Config.URL, "message", w.id, "messages", len(failed), "err", failed[i])
		}
		switch t := b.tracked[w.id]; {
		case t == nil:
		case t.isHandled && now.After(t.hiddenUntil):
			delete(b.tracked, w.id) // the handle may have expired: SQS delivers the message again
		default:
			t.nextTry = now.Add(min(b.options.Config.Visibility/4, maxReceivePause))
		}
	}
	return failed
}
