package aws

import (
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Cloud serves the APIs of SQS, EC2 and Auto Scaling at one endpoint. The SDK reads such an endpoint from the variable
// AWS_ENDPOINT_URL.
type Cloud struct {
	SQS         *SQS
	EC2         *EC2
	AutoScaling *AutoScaling

	server *httptest.Server // nil without a network

	mu       sync.Mutex
	random   *mathrand.Rand
	rates    FaultRates
	requests map[string]int // by service and action
}

// FaultRates are probabilities, from 0 to 1, of faults in the response to a request.
type FaultRates struct {
	// Throttled and Unavailable refuse a request.
	Throttled, Unavailable float64
	// Lost performs a request, and cuts the connection before the response.
	Lost float64
	// Slow delays a request by up to MaxDelay.
	Slow     float64
	MaxDelay time.Duration
}

// NewCloud returns the APIs of an account with one Auto Scaling group, for clients in this process.
func NewCloud(group string, hooks ...LifecycleHook) *Cloud {
	return &Cloud{
		SQS: NewSQS(), EC2: NewEC2(), AutoScaling: NewAutoScaling(group, hooks...), requests: map[string]int{},
		random: mathrand.New(mathrand.NewPCG(1, 3)),
	}
}

// StartCloud starts the APIs on the loopback interface. The caller must close them.
func StartCloud(group string, hooks ...LifecycleHook) *Cloud {
	c := NewCloud(group, hooks...)
	c.server = httptest.NewServer(c)
	return c
}

// Close stops the APIs.
func (c *Cloud) Close() {
	c.server.CloseClientConnections()
	c.server.Close()
}

// URL returns the endpoint of the APIs.
func (c *Cloud) URL() string { return c.server.URL }

// Credentials returns the environment variables with the keys and the region for clients of the APIs.
func Credentials() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_SESSION_TOKEN=" + sessionToken,
		"AWS_REGION=" + Region, "AWS_EC2_METADATA_DISABLED=true",
	}
}

// SetFaults sets the rates of faults from now on. The same seed gives the same decisions.
func (c *Cloud) SetFaults(seed uint64, rates FaultRates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.random, c.rates = mathrand.New(mathrand.NewPCG(seed, 4)), rates
}

// Requests returns how many requests with an action, such as sqs:DeleteMessage, were received. It counts refused ones too.
func (c *Cloud) Requests(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[action]
}

type cloudFault int

const (
	noFault cloudFault = iota
	throttled
	unavailable
	lost
)

// chooseFault returns the fault of the next request.
func (c *Cloud) chooseFault() (fault cloudFault, delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random.Float64() < c.rates.Slow && c.rates.MaxDelay > 0 {
		delay = time.Duration(c.random.Int64N(int64(c.rates.MaxDelay)))
	}
	switch p, r := c.random.Float64(), c.rates; {
	case p < r.Throttled:
		fault = throttled
	case p < r.Throttled+r.Unavailable:
		fault = unavailable
	case p < r.Throttled+r.Unavailable+r.Lost:
		fault = lost
	}
	return fault, delay
}

// ServeHTTP serves one request to an API. The signature of the request names the service.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4*maxMessageBytes))
	service := serviceOf(r)
	fault, delay := c.chooseFault()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done(): // the client has gone, and the request never arrived
			return
		}
	}
	if err := errors.Join(err, verifySignature(r, service, body, time.Now())); err != nil {
		c.writeError(w, service, http.StatusForbidden, "SignatureDoesNotMatch", err.Error())
		return
	}
	switch fault {
	case noFault:
		c.serve(w, r, service, body)
	case lost:
		c.serve(httptest.NewRecorder(), r, service, body)
		panic(http.ErrAbortHandler)
	case unavailable:
		c.count(service, "refused")
		c.writeError(w, service, http.StatusServiceUnavailable, "ServiceUnavailable", "Service is unable to handle request.")
	case throttled:
		c.count(service, "refused")
		c.writeThrottled(w, service)
	}
}

// serviceOf returns the service in the credential scope of a request.
func serviceOf(r *http.Request) string {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	scope, _, _ := strings.Cut(rest, ",")
	if parts := strings.Split(scope, "/"); len(parts) == 5 {
		return parts[3]
	}
	return ""
}

func (c *Cloud) count(service, action string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[service+":"+action]++
}

// serve serves one request. The caller has checked its signature.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, service string, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		form = url.Values{}
	}
	if service == "sqs" {
		c.count(service, strings.TrimPrefix(r.Header.Get("X-Amz-Target"), sqsTargetPrefix))
		c.SQS.serve(w, r, body)
		return
	}
	c.count(service, form.Get("Action"))
	switch service {
	case "ec2":
		c.EC2.serve(w, r, form)
	case "autoscaling":
		c.AutoScaling.serve(w, r, form)
	default:
		c.writeError(w, service, http.StatusNotFound, "UnknownService", "no API of the service "+service+" is emulated")
	}
}

func (c *Cloud) writeThrottled(w http.ResponseWriter, service string) {
	switch service {
	case "sqs":
		writeSQSError(w, &sqsError{http.StatusBadRequest, "RequestThrottled", "RequestThrottled", "The request was denied due to request throttling."})
	case "ec2":
		c.writeError(w, service, http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
	default:
		c.writeError(w, service, http.StatusBadRequest, "Throttling", "Rate exceeded")
	}
}

// writeError writes an error in the form of a service.
func (c *Cloud) writeError(w http.ResponseWriter, service string, status int, code, text string) {
	if service == "sqs" {
		writeSQSError(w, &sqsError{status, code, code, text})
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	if service == "ec2" {
		writeEC2Error(w, code, text)
		return
	}
	writeAutoScalingError(w, code, text)
}
