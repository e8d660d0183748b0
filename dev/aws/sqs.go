package aws

import (
	"context"
	"crypto/md5" //nolint:gosec // the SQS API has this checksum
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// AccountID is the account of all queues, groups and instances.
	AccountID = "123456789012"

	maxBatch          = 10
	maxLongPoll       = 20 * time.Second
	maxVisibility     = 12 * time.Hour
	defaultVisibility = 30 * time.Second
	defaultRetention  = 4 * 24 * time.Hour
	maxMessageBytes   = 1 << 20
	senderID          = "AIDAEXAMPLEEXAMPLE000"
	invalidParameter  = "InvalidParameterValue"
	sqsTargetPrefix   = "AmazonSQS."
	sqsShapeNamespace = "com.amazonaws.sqs#"
	nonExistentQueue  = "AWS.SimpleQueueService.NonExistentQueue"
	visibilityTooLong = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
)

// QueueOptions configures a queue of [SQS]. Zero values are the defaults of Amazon SQS.
type QueueOptions struct {
	Visibility, Retention time.Duration
	// DeadLetter is the name of the queue that gets a message after MaxReceives receives without a deletion.
	DeadLetter  string
	MaxReceives int
}

// DeliveryRates are probabilities, from 0 to 1, of what a standard queue may do: deliver more than once, and in any
// order.
type DeliveryRates struct {
	// Duplicate is that a message stays visible although it was received.
	Duplicate float64
	// Undelete is that a deleted message is delivered again, once.
	Undelete float64
	// Reorder is that a receive takes a random message instead of the oldest one.
	Reorder float64
}

// SQS is the API of Amazon SQS with its standard queues. It serves the protocol AWS JSON 1.0, which the AWS SDK for Go
// v2 speaks.
type SQS struct {
	mu      sync.Mutex
	queues  map[string]*queue
	random  *mathrand.Rand
	rates   DeliveryRates
	ahead   time.Duration // of the clock in responses
	changed chan struct{} // closed when a message may have become visible
}

type queue struct {
	name     string
	options  QueueOptions
	messages []*message // not deleted
	records  map[string]*MessageRecord
}

type message struct {
	id, body string
	sent     time.Time
	first    time.Time // first receive
	received time.Time // last receive
	visible  time.Time // when it becomes visible
	receives int
	handle   string // of the last receive
	undead   bool   // it came back after its deletion
	record   *MessageRecord
}

// MessageRecord is what has happened to a message.
type MessageRecord struct {
	ID, Body string
	Sent     time.Time
	// Receives are the times of its deliveries, from all queues.
	Receives []time.Time
	// Deleted is the time of its last deletion; zero if it was not deleted.
	Deleted time.Time
	// DeadLettered is when it was moved to the dead-letter queue.
	DeadLettered time.Time
	// Expired is when its retention ended.
	Expired time.Time
}

// NewSQS returns an API that has no queues.
func NewSQS() *SQS {
	return &SQS{queues: map[string]*queue{}, random: mathrand.New(mathrand.NewPCG(1, 1)), changed: make(chan struct{})}
}

// SetDelivery sets how badly the queues behave from now on. The same seed gives the same decisions.
func (s *SQS) SetDelivery(seed uint64, rates DeliveryRates) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.random, s.rates = mathrand.New(mathrand.NewPCG(seed, 2)), rates
}

// SetClockAhead sets how far the clock of the service is ahead; negative is behind.
func (s *SQS) SetClockAhead(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = ahead
}

// CreateQueue adds a queue and returns its URL.
func (s *SQS) CreateQueue(name string, o QueueOptions) (queueURL string) {
	if o.Visibility == 0 {
		o.Visibility = defaultVisibility
	}
	if o.Retention == 0 {
		o.Retention = defaultRetention
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[name] = &queue{name: name, options: o, records: map[string]*MessageRecord{}}
	return queueURLOf(name)
}

func queueURLOf(name string) string {
	return "https://sqs." + Region + ".amazonaws.com/" + AccountID + "/" + name
}

// Send adds a message to a queue and returns its ID.
func (s *SQS) Send(queueName, body string) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(s.queues[queueName], body, 0)
}

func (s *SQS) add(q *queue, body string, delay time.Duration) (id string) {
	now := time.Now()
	m := &message{id: uuid.NewString(), body: body, sent: now, visible: now.Add(delay)}
	m.record = &MessageRecord{ID: m.id, Body: body, Sent: now}
	q.records[m.id] = m.record
	q.messages = append(q.messages, m)
	s.wakeReceivers()
	return m.id
}

func (s *SQS) wakeReceivers() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Messages returns the records of all messages that were sent to a queue, in the order of their time.
func (s *SQS) Messages(queueName string) []MessageRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []MessageRecord
	for _, r := range s.queues[queueName].records {
		c := *r
		c.Receives = slices.Clone(c.Receives)
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b MessageRecord) int {
		if c := a.Sent.Compare(b.Sent); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// Depth returns how many messages a queue holds, visible or not.
func (s *SQS) Depth(queueName string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[queueName]
	s.expire(q, time.Now())
	return len(q.messages)
}

func (s *SQS) expire(q *queue, now time.Time) {
	q.messages = slices.DeleteFunc(q.messages, func(m *message) bool {
		if now.Sub(m.sent) < q.options.Retention {
			return false
		}
		m.record.Expired = now
		return true
	})
}

// sqsError is an error of the API. Code is the code of the older Query protocol, which clients get in a header.
type sqsError struct {
	status               int
	shape, code, message string
}

func newParameterError(format string, values ...any) *sqsError {
	return &sqsError{http.StatusBadRequest, invalidParameter, invalidParameter, fmt.Sprintf(format, values...)}
}

// sqsRequest has the parameters of all actions.
type sqsRequest struct {
	QueueURL                    string `json:"QueueUrl"`
	QueueName                   string
	MaxNumberOfMessages         *int
	WaitTimeSeconds             *int
	VisibilityTimeout           *int
	AttributeNames              []string
	MessageSystemAttributeNames []string
	ReceiptHandle               string
	MessageBody                 string
	DelaySeconds                int
	Entries                     []batchEntry
}

type batchEntry struct {
	ID                string `json:"Id"`
	ReceiptHandle     string
	VisibilityTimeout *int
	MessageBody       string
	DelaySeconds      int
}

type batchFailure struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

type batchSuccess struct {
	ID        string `json:"Id"`
	MessageID string `json:"MessageId,omitempty"`
	MD5       string `json:"MD5OfMessageBody,omitempty"`
}

type batchResult struct {
	Successful []batchSuccess `json:",omitempty"`
	Failed     []batchFailure `json:",omitempty"`
}

type receivedMessage struct {
	MessageID     string `json:"MessageId"`
	ReceiptHandle string
	MD5OfBody     string
	Body          string
	Attributes    map[string]string `json:",omitempty"`
}

// serve serves one request. The caller has checked its signature.
func (s *SQS) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	action, found := strings.CutPrefix(r.Header.Get("X-Amz-Target"), sqsTargetPrefix)
	var q sqsRequest
	var answer any
	var failed *sqsError
	switch err := json.Unmarshal(body, &q); {
	case !found || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-amz-json-1.0":
		failed = &sqsError{http.StatusBadRequest, "UnknownOperationException", "InvalidAction", "The action is not valid for this endpoint."}
	case err != nil:
		failed = &sqsError{http.StatusBadRequest, "SerializationException", "SerializationException", err.Error()}
	default:
		answer, failed = s.perform(r.Context(), action, q)
	}
	s.mu.Lock()
	w.Header().Set("Date", time.Now().Add(s.ahead).UTC().Format(http.TimeFormat))
	s.mu.Unlock()
	if failed != nil {
		writeSQSError(w, failed)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amzn-Requestid", uuid.NewString())
	if answer == nil { // the real service sends no body then
		w.WriteHeader(http.StatusOK)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have stopped reading
}

func writeSQSError(w http.ResponseWriter, e *sqsError) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amzn-Requestid", uuid.NewString())
	w.Header().Set("X-Amzn-Query-Error", e.code+";Sender")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": sqsShapeNamespace + e.shape, "message": e.message}) // as above
}

func (s *SQS) perform(ctx context.Context, action string, r sqsRequest) (answer any, failed *sqsError) {
	if action == "ReceiveMessage" {
		return s.receive(ctx, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if action == "GetQueueUrl" {
		if s.queues[r.QueueName] == nil {
			return nil, newMissingQueueError()
		}
		return map[string]string{"QueueUrl": queueURLOf(r.QueueName)}, nil
	}
	q := s.find(r.QueueURL)
	if q == nil {
		return nil, newMissingQueueError()
	}
	switch action {
	case "SendMessage":
		if failed := checkBody(r.MessageBody); failed != nil {
			return nil, failed
		}
		id := s.add(q, r.MessageBody, time.Duration(r.DelaySeconds)*time.Second)
		return map[string]string{"MessageId": id, "MD5OfMessageBody": checksum(r.MessageBody)}, nil
	case "DeleteMessage":
		return nil, s.delete(q, r.ReceiptHandle)
	case "ChangeMessageVisibility":
		return nil, s.changeVisibility(q, r.ReceiptHandle, r.VisibilityTimeout)
	case "GetQueueAttributes":
		return map[string]any{"Attributes": s.attributes(q)}, nil
	}
	return s.performBatch(q, action, r.Entries)
}

// performBatch performs an action for each entry of a batch.
func (s *SQS) performBatch(q *queue, action string, entries []batchEntry) (answer any, failed *sqsError) {
	var do func(batchEntry) (batchSuccess, *sqsError)
	switch action {
	case "DeleteMessageBatch":
		do = func(e batchEntry) (batchSuccess, *sqsError) { return batchSuccess{}, s.delete(q, e.ReceiptHandle) }
	case "ChangeMessageVisibilityBatch":
		do = func(e batchEntry) (batchSuccess, *sqsError) {
			return batchSuccess{}, s.changeVisibility(q, e.ReceiptHandle, e.VisibilityTimeout)
		}
	case "SendMessageBatch":
		do = func(e batchEntry) (batchSuccess, *sqsError) {
			if failed := checkBody(e.MessageBody); failed != nil {
				return batchSuccess{}, failed
			}
			return batchSuccess{MessageID: s.add(q, e.MessageBody, time.Duration(e.DelaySeconds)*time.Second), MD5: checksum(e.MessageBody)}, nil
		}
	default:
		return nil, &sqsError{http.StatusBadRequest, "UnknownOperationException", "InvalidAction", "The action " + action + " is not valid for this endpoint."}
	}
	if len(entries) == 0 {
		return nil, &sqsError{
			http.StatusBadRequest, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest",
			"There should be at least one " + action + "RequestEntry in the request.",
		}
	}
	if len(entries) > maxBatch {
		return nil, &sqsError{
			http.StatusBadRequest, "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
			fmt.Sprintf("Maximum number of entries per request are %d. You have sent %d.", maxBatch, len(entries)),
		}
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if seen[e.ID] {
			return nil, &sqsError{
				http.StatusBadRequest, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
				"Id " + e.ID + " repeated.",
			}
		}
		seen[e.ID] = true
	}
	var result batchResult
	for _, e := range entries {
		done, failed := do(e)
		if failed != nil {
			result.Failed = append(result.Failed, batchFailure{e.ID, failed.code, failed.message, true})
			continue
		}
		done.ID = e.ID
		result.Successful = append(result.Successful, done)
	}
	return result, nil
}

func newMissingQueueError() *sqsError {
	return &sqsError{http.StatusBadRequest, "QueueDoesNotExist", nonExistentQueue, "The specified queue does not exist."}
}

// find returns the queue of a URL, or nil. Like the real service, it ignores the host.
func (s *SQS) find(queueURL string) *queue {
	u, err := url.Parse(queueURL)
	if err != nil {
		return nil
	}
	name, found := strings.CutPrefix(u.Path, "/"+AccountID+"/")
	if !found {
		return nil
	}
	return s.queues[name]
}

func checkBody(body string) *sqsError {
	if body == "" || len(body) > maxMessageBytes {
		return newParameterError("The request must contain the parameter MessageBody, of at most %d bytes.", maxMessageBytes)
	}
	return nil
}

// receive returns up to ten visible messages. It waits for the first one as long as the request says.
func (s *SQS) receive(ctx context.Context, r sqsRequest) (answer any, failed *sqsError) {
	count, wait := 1, time.Duration(0)
	if r.MaxNumberOfMessages != nil {
		count = *r.MaxNumberOfMessages
	}
	if count < 1 || count > maxBatch {
		return nil, newParameterError("Value %d for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.", count)
	}
	if r.WaitTimeSeconds != nil {
		wait = time.Duration(*r.WaitTimeSeconds) * time.Second
	}
	if wait < 0 || wait > maxLongPoll {
		return nil, newParameterError("Value %d for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.", *r.WaitTimeSeconds)
	}
	if v := r.VisibilityTimeout; v != nil && (*v < 0 || *v > int(maxVisibility.Seconds())) {
		return nil, newParameterError("Value %d for parameter VisibilityTimeout is invalid. Reason: Must be >= 0 and <= 43200.", *v)
	}
	end := time.Now().Add(wait)
	for {
		s.mu.Lock()
		q := s.find(r.QueueURL)
		if q == nil {
			s.mu.Unlock()
			return nil, newMissingQueueError()
		}
		now := time.Now()
		got, next := s.takeVisible(q, count, r, now)
		changed := s.changed
		s.mu.Unlock()
		if len(got) > 0 {
			return map[string]any{"Messages": got}, nil
		}
		pause := end.Sub(now)
		if pause <= 0 {
			return map[string]any{}, nil
		}
		if !next.IsZero() {
			pause = min(pause, next.Sub(now))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done(): // the client has gone, and gets no message
			timer.Stop()
			return map[string]any{}, nil
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// takeVisible receives up to count messages. If there are none, next is when one becomes visible; zero if
// there is none.
func (s *SQS) takeVisible(q *queue, count int, r sqsRequest, now time.Time) (got []receivedMessage, next time.Time) {
	s.expire(q, now)
	visibility := q.options.Visibility
	if r.VisibilityTimeout != nil {
		visibility = time.Duration(*r.VisibilityTimeout) * time.Second
	}
	var visible []*message
	for _, m := range q.messages {
		switch {
		case !now.Before(m.visible):
			visible = append(visible, m)
		case next.IsZero() || m.visible.Before(next):
			next = m.visible
		}
	}
	if s.random.Float64() < s.rates.Reorder {
		s.random.Shuffle(len(visible), func(i, j int) { visible[i], visible[j] = visible[j], visible[i] })
	}
	for _, m := range visible {
		if len(got) == count {
			break
		}
		if dead := s.queues[q.options.DeadLetter]; dead != nil && m.receives >= q.options.MaxReceives {
			q.messages = slices.DeleteFunc(q.messages, func(o *message) bool { return o == m })
			m.record.DeadLettered, m.receives, m.handle = now, 0, ""
			dead.messages = append(dead.messages, m)
			dead.records[m.id] = m.record
			s.wakeReceivers()
			continue
		}
		m.receives++
		if m.first.IsZero() {
			m.first = now
		}
		m.received, m.visible, m.handle = now, now.Add(visibility), rand.Text()+"/"+m.id
		if s.random.Float64() < s.rates.Duplicate {
			m.visible = now
		}
		m.record.Receives = append(m.record.Receives, now)
		one := receivedMessage{MessageID: m.id, ReceiptHandle: m.handle, MD5OfBody: checksum(m.body), Body: m.body}
		if names := append(slices.Clone(r.AttributeNames), r.MessageSystemAttributeNames...); len(names) > 0 {
			one.Attributes = selectAttributes(m.systemAttributes(), names)
		}
		got = append(got, one)
	}
	return got, next
}

func (m *message) systemAttributes() map[string]string {
	return map[string]string{
		"ApproximateReceiveCount": strconv.Itoa(m.receives), "SenderId": senderID,
		"SentTimestamp":                    strconv.FormatInt(m.sent.UnixMilli(), 10),
		"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.first.UnixMilli(), 10),
	}
}

func selectAttributes(all map[string]string, names []string) map[string]string {
	if slices.Contains(names, "All") {
		return all
	}
	selected := map[string]string{}
	for _, name := range names {
		if value, ok := all[name]; ok {
			selected[name] = value
		}
	}
	return selected
}

// delete deletes the message of a receipt handle. A handle of an earlier receive deletes nothing, and succeeds.
func (s *SQS) delete(q *queue, handle string) *sqsError {
	_, id, found := strings.Cut(handle, "/")
	if !found || uuid.Validate(id) != nil {
		return newHandleError(handle)
	}
	i := slices.IndexFunc(q.messages, func(m *message) bool { return m.handle == handle })
	if i < 0 {
		return nil
	}
	m, now := q.messages[i], time.Now()
	m.record.Deleted = now
	if !m.undead && s.random.Float64() < s.rates.Undelete {
		m.undead, m.visible, m.handle = true, now, ""
		s.wakeReceivers()
		return nil
	}
	q.messages = slices.Delete(q.messages, i, i+1)
	return nil
}

func newHandleError(handle string) *sqsError {
	return &sqsError{http.StatusBadRequest, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", "The input receipt handle \"" + handle + "\" is not a valid receipt handle."}
}

// changeVisibility sets how long a received message stays invisible from now on.
func (s *SQS) changeVisibility(q *queue, handle string, seconds *int) *sqsError {
	if seconds == nil || *seconds < 0 || *seconds > int(maxVisibility.Seconds()) {
		return newParameterError("VisibilityTimeout is invalid. Reason: Must be between 0 and 43200.")
	}
	if _, id, found := strings.Cut(handle, "/"); !found || uuid.Validate(id) != nil {
		return newHandleError(handle)
	}
	now := time.Now()
	i := slices.IndexFunc(q.messages, func(m *message) bool { return m.handle == handle })
	if i < 0 {
		return newParameterError("Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", handle)
	}
	m := q.messages[i]
	if !now.Before(m.visible) {
		return &sqsError{http.StatusBadRequest, "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", "The message referred to is not in flight."}
	}
	visible := now.Add(time.Duration(*seconds) * time.Second)
	if visible.Sub(m.received) > maxVisibility {
		return newParameterError("Value %d for parameter VisibilityTimeout is invalid. Reason: %s.", *seconds, visibilityTooLong)
	}
	if m.visible = visible; !now.Before(visible) {
		s.wakeReceivers()
	}
	return nil
}

func (s *SQS) attributes(q *queue) map[string]string {
	now, visible := time.Now(), 0
	s.expire(q, now)
	for _, m := range q.messages {
		if !now.Before(m.visible) {
			visible++
		}
	}
	out := map[string]string{
		"QueueArn": queueARN(q.name), "ApproximateNumberOfMessages": strconv.Itoa(visible),
		"ApproximateNumberOfMessagesNotVisible": strconv.Itoa(len(q.messages) - visible), "ApproximateNumberOfMessagesDelayed": "0",
		"VisibilityTimeout": strconv.Itoa(int(q.options.Visibility.Seconds())), "MessageRetentionPeriod": strconv.Itoa(int(q.options.Retention.Seconds())),
	}
	if q.options.DeadLetter != "" {
		out["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, queueARN(q.options.DeadLetter), q.options.MaxReceives)
	}
	return out
}

func queueARN(name string) string { return "arn:aws:sqs:" + Region + ":" + AccountID + ":" + name }

func checksum(body string) string {
	sum := md5.Sum([]byte(body)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}
