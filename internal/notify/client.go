package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// noProxy disables any proxy, also from the environment.
	noProxy = "direct"
	// maxResponseBytes is how much of a response is read, and maxQuotedBytes how much of it an error quotes.
	maxResponseBytes = 64 << 10
	maxQuotedBytes   = 200
	// maxRetryAfter limits the pause that a receiver can demand, because it may be wrong.
	maxRetryAfter  = 10 * time.Minute
	idleConnection = 30 * time.Second
)

// failure is a failed or refused request.
type failure struct {
	err error
	// final means that the receiver would refuse the same request again.
	final bool
	// absent means that the receiver did not respond, or demanded a pause. Another message would fail too.
	absent bool
	// after is the pause that the receiver demands; 0 is none.
	after time.Duration
	code  int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// client sends the requests of one receiver. One goroutine uses it.
type client struct {
	connection Connection
	field      func(string) string
	agent      string
	wrap       func(http.RoundTripper) http.RoundTripper

	ca        string // used for the present transport
	transport http.RoundTripper
	idle      interface{ CloseIdleConnections() }
}

// renewTransportIfChanged creates the transport, and replaces it when the CA file has changed.
func (c *client) renewTransportIfChanged() error {
	var ca string
	if c.connection.CAFile != "" {
		var err error
		if ca, err = readFile(c.connection.CAFile); err != nil {
			return fmt.Errorf("%s: %w", c.field("caFile"), err)
		}
	}
	if c.transport != nil && ca == c.ca {
		return nil
	}
	t := &http.Transport{
		Proxy:                  c.proxyFor,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.connection.InsecureSkipVerify}, //nolint:gosec // as asked for, and warned of
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           1,
		IdleConnTimeout:        idleConnection,
		DialContext:            (&net.Dialer{KeepAlive: idleConnection}).DialContext,
		MaxConnsPerHost:        2,
		WriteBufferSize:        4 << 10,
		ReadBufferSize:         4 << 10,
		MaxResponseHeaderBytes: maxResponseBytes,
	}
	if ca != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return fmt.Errorf("%s: %s: has no certificate: want one or more in PEM", c.field("caFile"), c.connection.CAFile)
		}
	}
	if c.idle != nil {
		c.idle.CloseIdleConnections()
	}
	c.ca, c.transport, c.idle = ca, t, t
	if c.wrap != nil {
		c.transport = c.wrap(t)
	}
	return nil
}

// proxyFor returns the proxy for a request. It reads the password again, so that it may be replaced.
func (c *client) proxyFor(r *http.Request) (*url.URL, error) {
	switch c.connection.Proxy {
	case "":
		return http.ProxyFromEnvironment(r)
	case noProxy:
		return nil, nil
	}
	u, err := url.Parse(c.connection.Proxy)
	if err != nil {
		return nil, fmt.Errorf("%s: not a URL", c.field("proxy"))
	}
	password, err := c.proxyPassword()
	if password != "" {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	return u, err
}

// proxyPassword reads the proxy's password from its file, if there is one.
func (c *client) proxyPassword() (string, error) {
	if c.connection.ProxyPasswordFile == "" {
		return "", nil
	}
	password, err := readSecret(c.connection.ProxyPasswordFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.field("proxyPasswordFile"), err)
	}
	return password, nil
}

// addSecrets adds the secrets of the connection to s.
func (c *client) addSecrets(s *secrets) {
	if u, err := url.Parse(c.connection.Proxy); err == nil && u.User != nil {
		password, _ := u.User.Password()
		s.add(u.User.String(), password)
	}
	if password, err := c.proxyPassword(); err == nil {
		s.add(password)
	}
}

// send sends one request and evaluates the response.
func (c *client) send(req *http.Request) *failure {
	if err := c.renewTransportIfChanged(); err != nil {
		return &failure{err: err, absent: true}
	}
	req.Header.Set("User-Agent", c.agent)
	hc := &http.Client{Transport: c.transport, CheckRedirect: allowSafeRedirect}
	resp, err := hc.Do(req)
	if err != nil {
		return &failure{err: transportErrorWithoutURL(req.Context(), err, c.connection.timeout()), absent: true}
	}
	defer func() { _ = resp.Body.Close() }() // the needed part has been read
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes))
	if err != nil && resp.StatusCode/100 == 2 {
		return nil // it was delivered, even if the response is truncated
	}
	return failureFromResponse(resp, raw, time.Now())
}

// maxRedirects is how many redirects of one request are followed.
const maxRedirects = 10

// allowSafeRedirect follows only redirects that keep method and body: 307 and 308. Others would deliver an empty
// message. It does not follow a redirect from https to http, which would expose the message. Another host gets no
// credentials.
func allowSafeRedirect(next *http.Request, made []*http.Request) error {
	code := next.Response.StatusCode
	if code != http.StatusTemporaryRedirect && code != http.StatusPermanentRedirect || len(made) > maxRedirects ||
		made[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	next.Header.Del("Referer") // it contains the path, which may be a secret
	if !strings.EqualFold(next.URL.Host, made[0].URL.Host) {
		for name := range next.Header {
			if isSensitiveHeader(name) {
				next.Header.Del(name)
			}
		}
	}
	return nil
}

// transportErrorWithoutURL removes the URL from an error of net/http, because it may contain a secret.
func transportErrorWithoutURL(ctx context.Context, err error, timeout time.Duration) error {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no response within %s", timeout)
	}
	return err
}

// failureFromResponse returns nil for a delivered message, and the failure otherwise.
func failureFromResponse(resp *http.Response, raw []byte, now time.Time) *failure {
	code := resp.StatusCode
	if code/100 == 2 {
		return nil
	}
	f := &failure{code: code, err: fmt.Errorf("answered %s%s", statusLine(code), quoteBody(raw))}
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		f.absent = true
		f.after = parseRetryAfter(resp.Header.Get("Retry-After"), raw, now)
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly:
	case code == http.StatusProxyAuthRequired, code == http.StatusUnauthorized, code == http.StatusForbidden:
		f.final = code != http.StatusProxyAuthRequired // a password may be replaced while the message waits
		f.absent = !f.final
	case code/100 == 3:
		f.final = true
		f.err = fmt.Errorf("answered %s: this redirect is not followed: want its target as the address", statusLine(code))
	case code == http.StatusNotImplemented, code/100 != 5:
		f.final = true
	}
	return f
}

func statusLine(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// quoteBody returns the beginning of a response, in one line.
func quoteBody(raw []byte) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(bytes.TrimSpace(raw)), "?")), " ")
	if text == "" {
		return ""
	}
	if len(text) > maxQuotedBytes {
		text = strings.ToValidUTF8(text[:maxQuotedBytes], "") + "…"
	}
	return ": " + text
}

// parseRetryAfter parses the header Retry-After, in seconds or as a date (RFC 9110, 10.2.3). Without it, it uses
// Telegram's value in the body (https://core.telegram.org/bots/api#responseparameters). An invalid value is 0.
func parseRetryAfter(header string, raw []byte, now time.Time) time.Duration {
	var wait time.Duration
	header = strings.TrimSpace(header)
	if n, err := strconv.ParseUint(header, 10, 31); err == nil {
		wait = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		wait = at.Sub(now)
	} else {
		var telegram struct {
			Parameters struct {
				RetryAfter uint32 `json:"retry_after"`
			} `json:"parameters"`
		}
		if json.Unmarshal(raw, &telegram) == nil {
			wait = time.Duration(telegram.Parameters.RetryAfter) * time.Second
		}
	}
	return min(max(0, wait), maxRetryAfter)
}
