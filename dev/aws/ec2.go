package aws

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// EC2Instance is an instance as the EC2 API describes it.
type EC2Instance struct {
	ID, Zone string
	// PrivateDNSName is empty for an instance that is terminated.
	PrivateDNSName string
	// State is one of pending, running, shutting-down, terminated, stopping and stopped.
	State string
	Tags  map[string]string
}

// EC2 is the EC2 API with its instances. It serves DescribeInstances.
type EC2 struct {
	mu        sync.Mutex
	instances map[string]EC2Instance
	denied    map[string]bool
}

// NewEC2 returns an API that has no instances.
func NewEC2() *EC2 { return &EC2{instances: map[string]EC2Instance{}, denied: map[string]bool{}} }

// Put adds an instance, or replaces the one with its ID.
func (e *EC2) Put(i EC2Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.instances[i.ID] = i
}

// SetState sets the state of an instance. A terminated instance loses its private DNS name.
func (e *EC2) SetState(id, state string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.instances[id]
	if i.State = state; state == "terminated" {
		i.PrivateDNSName = ""
	}
	e.instances[id] = i
}

// Remove removes an instance, as EC2 does about an hour after its termination.
func (e *EC2) Remove(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.instances, id)
}

// Deny makes the role lack the permission for an action.
func (e *EC2) Deny(action string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.denied[action] = true
}

// instanceStateCodes are the values of instanceState.code.
var instanceStateCodes = map[string]int{"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}

var validInstanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// serve serves one request. The caller has checked its signature.
func (e *EC2) serve(w http.ResponseWriter, r *http.Request, form url.Values) {
	status, code, answer := e.perform(r, form)
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	if code != "" {
		writeEC2Error(w, code, answer)
		return
	}
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<%[1]sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>%[2]s</requestId>%[3]s</%[1]sResponse>`,
		form.Get("Action"), uuid.NewString(), answer) // the client may have stopped reading
}

func writeEC2Error(w http.ResponseWriter, code, text string) {
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>%s</RequestID></Response>`,
		code, escape(text), uuid.NewString()) // as above
}

func (e *EC2) perform(r *http.Request, form url.Values) (status int, code, answer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	action := form.Get("Action")
	switch {
	case r.Method != http.MethodPost || form.Get("Version") != "2016-11-15" || action != "DescribeInstances":
		return http.StatusBadRequest, "InvalidAction", "The action " + action + " is not valid for this web service."
	case e.denied[action]:
		return http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. User: arn:aws:sts::" + AccountID +
			":assumed-role/node-role/i-0 is not authorized to perform: ec2:" + action + " because no identity-based policy allows the ec2:" + action + " action"
	}
	selected, code, text := e.selectInstances(form)
	if code != "" {
		return http.StatusBadRequest, code, text
	}
	var b strings.Builder
	for _, i := range selected {
		b.WriteString(i.toReservation())
	}
	return http.StatusOK, "", "<reservationSet>" + b.String() + "</reservationSet>"
}

// selectInstances returns the instances that a request asks for, by ID and by filters.
func (e *EC2) selectInstances(form url.Values) (selected []EC2Instance, code, text string) {
	ids := memberValues(form, "InstanceId")
	for _, id := range ids {
		if !validInstanceID.MatchString(id) {
			return nil, "InvalidInstanceID.Malformed", fmt.Sprintf("Invalid id: %q", id)
		}
		i, ok := e.instances[id]
		if !ok {
			return nil, "InvalidInstanceID.NotFound", fmt.Sprintf("The instance ID '%s' does not exist", id)
		}
		selected = append(selected, i)
	}
	if len(ids) == 0 {
		for _, i := range e.instances {
			selected = append(selected, i)
		}
		slices.SortFunc(selected, func(a, b EC2Instance) int { return strings.Compare(a.ID, b.ID) })
	}
	for n := 1; form.Get(fmt.Sprintf("Filter.%d.Name", n)) != ""; n++ {
		name, values := form.Get(fmt.Sprintf("Filter.%d.Name", n)), memberValues(form, fmt.Sprintf("Filter.%d.Value", n))
		var field func(EC2Instance) string
		switch key, isTag := strings.CutPrefix(name, "tag:"); {
		case isTag:
			field = func(i EC2Instance) string { return i.Tags[key] }
		case name == "instance-id":
			field = func(i EC2Instance) string { return i.ID }
		case name == "private-dns-name":
			field = func(i EC2Instance) string { return i.PrivateDNSName }
		case name == "instance-state-name":
			field = func(i EC2Instance) string { return i.State }
		case name == "tag-key":
			field = func(i EC2Instance) string {
				for _, key := range values {
					if _, tagged := i.Tags[key]; tagged {
						return key
					}
				}
				return ""
			}
		default:
			return nil, "InvalidParameterValue", "The filter '" + name + "' is invalid"
		}
		selected = slices.DeleteFunc(selected, func(i EC2Instance) bool { return !slices.Contains(values, field(i)) })
	}
	return selected, "", ""
}

// memberValues returns the values of NAME.1, NAME.2 and so on.
func memberValues(form url.Values, name string) (values []string) {
	for n := 1; form.Has(fmt.Sprintf("%s.%d", name, n)); n++ {
		values = append(values, form.Get(fmt.Sprintf("%s.%d", name, n)))
	}
	return values
}

func (i EC2Instance) toReservation() string {
	var tags strings.Builder
	for key, value := range i.Tags {
		fmt.Fprintf(&tags, "<item><key>%s</key><value>%s</value></item>", escape(key), escape(value))
	}
	return fmt.Sprintf(`<item><reservationId>r-%s</reservationId><ownerId>%s</ownerId><groupSet/><instancesSet><item><instanceId>%s</instanceId>`+
		`<instanceState><code>%d</code><name>%s</name></instanceState><privateDnsName>%s</privateDnsName><dnsName/>`+
		`<placement><availabilityZone>%s</availabilityZone><groupName/><tenancy>default</tenancy></placement><tagSet>%s</tagSet></item></instancesSet></item>`,
		strings.TrimPrefix(i.ID, "i-"), AccountID, i.ID, instanceStateCodes[i.State], i.State, escape(i.PrivateDNSName), i.Zone, tags.String())
}
