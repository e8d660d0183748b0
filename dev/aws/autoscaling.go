package aws

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// Region is the region of all instances and groups.
	Region = "eu-west-1"
	// AccessKeyID is the key of the role that the instances have.
	AccessKeyID  = "ASIAEXAMPLEEXAMPLE00"
	secretKey    = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	sessionToken = "IQoJb3JpZ2luX2VjEXAMPLE=="

	maxHooksTime = 48 * time.Hour
	maxSkew      = 5 * time.Minute
)

// LifecycleHook is a hook that runs before an instance of a group is terminated.
type LifecycleHook struct {
	Name string
	// Timeout is the heartbeat timeout.
	Timeout time.Duration
	// Transition is empty for autoscaling:EC2_INSTANCE_TERMINATING.
	Transition string
}

// Call is a request to the Auto Scaling API.
type Call struct {
	At     time.Time
	Action string
	Form   url.Values
	// Code is the error code of the response; empty is a success.
	Code string
}

// LifecycleAction is a wait of one instance for one hook. Its token and the ID of its instance identify it.
type LifecycleAction struct {
	Group, Hook, Instance, Token, Transition string
}

// The transitions of lifecycle hooks.
const (
	Terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	Launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
)

// AutoScaling is the Auto Scaling API with one group.
type AutoScaling struct {
	Group string

	server *httptest.Server

	mu      sync.Mutex
	hooks   []LifecycleHook
	denied  map[string]bool
	waiting map[string][]*lifecycleWait // by instance
	members map[string]bool
	calls   []Call
	fault   Fault
}

// lifecycleWait is an instance in the state Terminating:Wait or Pending:Wait.
type lifecycleWait struct {
	LifecycleAction

	timeout time.Duration
	began   time.Time
	expires time.Time
	ended   string // Result, or "TIMEOUT"
}

// NewAutoScaling returns the API with one group, for [Cloud].
func NewAutoScaling(group string, hooks ...LifecycleHook) *AutoScaling {
	return &AutoScaling{Group: group, hooks: hooks, denied: map[string]bool{}, waiting: map[string][]*lifecycleWait{}, members: map[string]bool{}}
}

// StartAutoScaling starts the API with one group. The caller must close it.
func StartAutoScaling(group string, hooks ...LifecycleHook) *AutoScaling {
	a := NewAutoScaling(group, hooks...)
	a.server = httptest.NewServer(a)
	return a
}

// Close stops the API.
func (a *AutoScaling) Close() {
	a.server.CloseClientConnections()
	a.server.Close()
}

// URL returns the endpoint of the API.
func (a *AutoScaling) URL() string { return a.server.URL }

// Deny makes the role lack the permission for an action.
func (a *AutoScaling) Deny(action string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denied[action] = true
}

// SetFault replaces all responses; nil ends that.
func (a *AutoScaling) SetFault(f Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

// Join adds an instance to the group.
func (a *AutoScaling) Join(i *Instance) {
	a.AddInstance(i.ID)
	i.Set(ASGPath, "InService")
}

// AddInstance adds an instance without a metadata service to the group.
func (a *AutoScaling) AddInstance(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.members[id] = true
}

// Terminate begins to terminate an instance, which waits for its hooks.
func (a *AutoScaling) Terminate(i *Instance) {
	a.StartAction(i.ID, Terminating)
	i.Set(ASGPath, "Terminated")
}

// StartAction begins a transition of an instance. The instance waits for each hook of the transition. The result has an
// action for each hook.
func (a *AutoScaling) StartAction(instance, transition string) (actions []LifecycleAction) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.waiting[instance] = nil
	for _, h := range a.hooks {
		if cmp.Or(h.Transition, Terminating) != transition {
			continue
		}
		w := &lifecycleWait{
			LifecycleAction: LifecycleAction{a.Group, h.Name, instance, uuid.NewString(), transition}, timeout: h.Timeout, began: now, expires: now.Add(h.Timeout),
		}
		a.waiting[instance] = append(a.waiting[instance], w)
		actions = append(actions, w.LifecycleAction)
	}
	return actions
}

// Result returns how the wait of an instance has ended: CONTINUE, ABANDON or TIMEOUT; empty while it waits for a hook.
func (a *AutoScaling) Result(instance string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	result := ""
	for _, w := range a.waiting[instance] {
		switch w.update(time.Now()); w.ended {
		case "", "ABANDON":
			return w.ended
		case "TIMEOUT":
			result = w.ended
		default:
			result = cmp.Or(result, w.ended)
		}
	}
	return result
}

func (w *lifecycleWait) update(now time.Time) {
	if w.ended == "" && !now.Before(w.expires) {
		w.ended = "TIMEOUT"
	}
}

// Calls returns the requests with an action, in their order.
func (a *AutoScaling) Calls(action string) []Call {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Call
	for _, c := range a.calls {
		if c.Action == action {
			all = append(all, c)
		}
	}
	return all
}

// ServeHTTP serves one request to the API.
func (a *AutoScaling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	form, formErr := url.ParseQuery(string(body))
	a.mu.Lock()
	fault := a.fault
	a.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	if err := errors.Join(err, formErr, verifySignature(r, "autoscaling", body, time.Now())); err != nil {
		a.respond(w, form, http.StatusForbidden, "SignatureDoesNotMatch", err.Error())
		return
	}
	a.serve(w, r, form)
}

// serve serves one request. The caller has checked its signature.
func (a *AutoScaling) serve(w http.ResponseWriter, r *http.Request, form url.Values) {
	status, code, answer := http.StatusBadRequest, "InvalidAction", "Could not find operation"
	if form.Get("Version") == "2011-01-01" && r.Method == http.MethodPost {
		status, code, answer = a.perform(form)
	}
	a.respond(w, form, status, code, answer)
}

func (a *AutoScaling) respond(w http.ResponseWriter, form url.Values, status int, code, answer string) {
	a.mu.Lock()
	a.calls = append(a.calls, Call{time.Now(), form.Get("Action"), form, code})
	a.mu.Unlock()
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	if code != "" {
		writeAutoScalingError(w, code, answer)
		return
	}
	action := form.Get("Action")
	_, _ = fmt.Fprintf(w, `<%[1]sResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
  <%[1]sResult>%[2]s</%[1]sResult>
  <ResponseMetadata><RequestId>e1c1ffa0-0d7f-11e6-9ae2-67d5e5a1a4f5</RequestId></ResponseMetadata>
</%[1]sResponse>
`, action, answer) // the client may have stopped reading
}

func writeAutoScalingError(w http.ResponseWriter, code, text string) {
	_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
  <Error>
    <Type>Sender</Type>
    <Code>%s</Code>
    <Message>%s</Message>
  </Error>
  <RequestId>e1c1ffa0-0d7f-11e6-9ae2-67d5e5a1a4f5</RequestId>
</ErrorResponse>
`, code, escape(text)) // as above
}

// perform carries out an action. It returns the content of the result, or an error code with its message.
func (a *AutoScaling) perform(form url.Values) (status int, code, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	action := form.Get("Action")
	if a.denied[action] {
		return http.StatusForbidden, "AccessDenied", "User: arn:aws:sts::123456789012:assumed-role/node-role/i-0 is not authorized to perform: autoscaling:" +
			action + " because no identity-based policy allows the autoscaling:" + action + " action"
	}
	switch action {
	case "DescribeAutoScalingInstances":
		return http.StatusOK, "", a.describeInstance(form.Get("InstanceIds.member.1"))
	case "DescribeLifecycleHooks":
		return a.describeHooks(form)
	case "RecordLifecycleActionHeartbeat", "CompleteLifecycleAction":
		return a.updateAction(form)
	}
	return http.StatusBadRequest, "InvalidAction", "Could not find operation " + action + " for version 2011-01-01"
}

func (a *AutoScaling) describeInstance(id string) string {
	if !a.members[id] {
		return "<AutoScalingInstances/>"
	}
	state := "InService"
	for _, w := range a.waiting[id] {
		if w.update(time.Now()); w.ended == "" {
			state = map[string]string{Terminating: "Terminating:Wait", Launching: "Pending:Wait"}[w.Transition]
		}
	}
	return fmt.Sprintf(`<AutoScalingInstances><member><HealthStatus>HEALTHY</HealthStatus><AutoScalingGroupName>%s</AutoScalingGroupName>`+
		`<InstanceId>%s</InstanceId><LifecycleState>%s</LifecycleState></member></AutoScalingInstances>`, escape(a.Group), id, state)
}

func (a *AutoScaling) describeHooks(form url.Values) (status int, code, answer string) {
	if form.Get("AutoScalingGroupName") != a.Group {
		return http.StatusBadRequest, "ValidationError", "AutoScalingGroup name not found - AutoScalingGroup " + form.Get("AutoScalingGroupName") + " not found"
	}
	var b strings.Builder
	for _, h := range a.hooks {
		if only := form.Get("LifecycleHookNames.member.1"); only != "" && only != h.Name {
			continue
		}
		transition := cmp.Or(h.Transition, Terminating)
		fmt.Fprintf(&b, `<member><GlobalTimeout>%d</GlobalTimeout><AutoScalingGroupName>%s</AutoScalingGroupName><LifecycleHookName>%s</LifecycleHookName>`+
			`<DefaultResult>ABANDON</DefaultResult><HeartbeatTimeout>%d</HeartbeatTimeout><LifecycleTransition>%s</LifecycleTransition></member>`,
			int(min(maxHooksTime, 100*h.Timeout).Seconds()), escape(a.Group), escape(h.Name), int(h.Timeout.Seconds()), transition)
	}
	return http.StatusOK, "", "<LifecycleHooks>" + b.String() + "</LifecycleHooks>"
}

// updateAction serves a heartbeat or a completion. The request names the action by its token, or by its instance.
func (a *AutoScaling) updateAction(form url.Values) (status int, code, answer string) {
	id, token, now := form.Get("InstanceId"), form.Get("LifecycleActionToken"), time.Now()
	var found *lifecycleWait
	for _, waits := range a.waiting {
		for _, w := range waits {
			w.update(now)
			if w.ended == "" && w.Hook == form.Get("LifecycleHookName") && w.Group == form.Get("AutoScalingGroupName") &&
				(id == "" || id == w.Instance) && (token == "" || token == w.Token) && id+token != "" {
				found = w
			}
		}
	}
	switch {
	case found == nil && token != "":
		return http.StatusBadRequest, "ValidationError", "No active Lifecycle Action found with token " + token
	case found == nil:
		return http.StatusBadRequest, "ValidationError", "No active Lifecycle Action found with instance ID " + id
	case form.Get("Action") == "RecordLifecycleActionHeartbeat":
		found.expires = now.Add(found.timeout)
		if last := found.began.Add(min(maxHooksTime, 100*found.timeout)); found.expires.After(last) {
			found.expires = last
		}
	case form.Get("LifecycleActionResult") != "CONTINUE" && form.Get("LifecycleActionResult") != "ABANDON":
		return http.StatusBadRequest, "ValidationError", "1 validation error detected: Value at 'lifecycleActionResult' is not valid"
	default:
		found.ended = form.Get("LifecycleActionResult")
	}
	return http.StatusOK, "", ""
}

// verifySignature checks the AWS Signature Version 4 of a request with the key of the role.
func verifySignature(r *http.Request, service string, body []byte, now time.Time) error {
	rest, found := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !found {
		return errors.New("missing Authentication Token")
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[key] = value
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || now.Sub(at).Abs() > maxSkew {
		return fmt.Errorf("signature expired: %q is not close to %s", r.Header.Get("X-Amz-Date"), now.UTC().Format(time.RFC3339))
	}
	scope := strings.Split(fields["Credential"], "/")
	if want := []string{AccessKeyID, at.Format("20060102"), Region, service, "aws4_request"}; !slices.Equal(scope, want) {
		return fmt.Errorf("credential %q: want the scope %q", scope, want)
	}
	if r.Header.Get("X-Amz-Security-Token") != sessionToken {
		return errors.New("the security token included in the request is invalid")
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	for _, name := range []string{"host", "x-amz-date", "x-amz-security-token", "content-type"} {
		if !slices.Contains(signed, name) {
			return fmt.Errorf("the header %s is not signed", name)
		}
	}
	if !slices.IsSorted(signed) || r.URL.RawQuery != "" {
		return errors.New("the signed headers are not sorted, or there is a query")
	}
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n\n"
	for _, name := range signed {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.Itoa(len(body))
		}
		canonical += name + ":" + strings.Join(strings.Fields(value), " ") + "\n"
	}
	bodySum, canonicalSum := sha256.Sum256(body), [32]byte{}
	canonical += "\n" + fields["SignedHeaders"] + "\n" + hex.EncodeToString(bodySum[:])
	canonicalSum = sha256.Sum256([]byte(canonical))
	toSign := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), hex.EncodeToString(canonicalSum[:])}, "\n")
	key := []byte("AWS4" + secretKey)
	for _, part := range append(scope[1:len(scope):len(scope)], toSign) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	if !hmac.Equal([]byte(hex.EncodeToString(key)), []byte(fields["Signature"])) {
		return errors.New("the request signature we calculated does not match the signature you provided")
	}
	return nil
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}
