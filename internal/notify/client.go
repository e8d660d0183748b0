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
	// noProxy as a proxy is none, whatever the environment says.
	noProxy = "direct"
	// mostAnswer is how much of an answer is read, and mostQuoted how much of it an error repeats, in bytes.
	mostAnswer = 64 << 10
	mostQuoted = 200
	// longestRetryAfter bounds the pause that a receiver can ask for: it may be wrong about itself.
	longestRetryAfter = 10 * time.Minute
	idleConnection    = 30 * time.Second
)

// failure is a request that did not reach its receiver, or was not welcome.
type failure struct {
	err error
	// final is a refusal that the same request would meet again.
	final bool
	// absent is a receiver that did not answer at all, or asked for patience: no other message would fare better now.
	absent bool
	// after is the pause that the receiver asked for; 0 is none.
	after time.Duration
	code  int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// client sends the requests of one receiver. It is used by one goroutine.
type client struct {
	n     Connection
	field func(string) string
	agent string
	wrap  func(http.RoundTripper) http.RoundTripper

	ca        string // what the transport was made with
	transport http.RoundTripper
	idle      interface{ CloseIdleConnections() }
}

// renew makes the transport, also when the CA file has changed.
func (c *client) renew() error {
	var ca string
	if c.n.CAFile != "" {
		var err error
		if ca, err = readFile(c.n.CAFile); err != nil {
			return fmt.Errorf("%s: %w", c.field("caFile"), err)
		}
	}
	if c.transport != nil && ca == c.ca {
		return nil
	}
	t := &http.Transport{
		Proxy:                  c.proxy,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.n.InsecureSkipVerify}, //nolint:gosec // as asked for, and warned of
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           1,
		IdleConnTimeout:        idleConnection,
		DialContext:            (&net.Dialer{KeepAlive: idleConnection}).DialContext,
		MaxConnsPerHost:        2,
		WriteBufferSize:        4 << 10,
		ReadBufferSize:         4 << 10,
		MaxResponseHeaderBytes: mostAnswer,
	}
	if ca != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return fmt.Errorf("%s: %s: no certificate in it: want one or more in PEM", c.field("caFile"), c.n.CAFile)
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

// proxy is the proxy for a request. The password is read anew, so that it may be replaced.
func (c *client) proxy(r *http.Request) (*url.URL, error) {
	switch c.n.Proxy {
	case "":
		return http.ProxyFromEnvironment(r)
	case noProxy:
		return nil, nil
	}
	u, err := url.Parse(c.n.Proxy)
	if err != nil {
		return nil, fmt.Errorf("%s: not a URL", c.field("proxy"))
	}
	password, err := c.password()
	if password != "" {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	return u, err
}

// password is the proxy's, where a file holds it.
func (c *client) password() (string, error) {
	if c.n.ProxyPasswordFile == "" {
		return "", nil
	}
	password, err := readSecret(c.n.ProxyPasswordFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.field("proxyPasswordFile"), err)
	}
	return password, nil
}

// known adds what the connection knows that no error may hold.
func (c *client) known(s *secrets) {
	if u, err := url.Parse(c.n.Proxy); err == nil && u.User != nil {
		password, _ := u.User.Password()
		s.add(u.User.String(), password)
	}
	if password, err := c.password(); err == nil {
		s.add(password)
	}
}

// send makes one request and judges its answer.
func (c *client) send(req *http.Request) *failure {
	if err := c.renew(); err != nil {
		return &failure{err: err, absent: true}
	}
	req.Header.Set("User-Agent", c.agent)
	hc := &http.Client{Transport: c.transport, CheckRedirect: followRedirect}
	resp, err := hc.Do(req)
	if err != nil {
		return &failure{err: reason(req.Context(), err, c.n.timeout()), absent: true}
	}
	defer func() { _ = resp.Body.Close() }() // What matters of it has been read.
	raw, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil && resp.StatusCode/100 == 2 {
		return nil // it was taken; how the answer ends changes nothing
	}
	return judge(resp, raw, time.Now())
}

// mostRedirects is how many redirects of one request are followed.
const mostRedirects = 10

// followRedirect follows a redirect that keeps method and body, 307 and 308. Another one would deliver an empty message,
// and one from https to http would show it to others. A server that the address does not name gets no credentials.
func followRedirect(next *http.Request, made []*http.Request) error {
	code := next.Response.StatusCode
	if code != http.StatusTemporaryRedirect && code != http.StatusPermanentRedirect || len(made) > mostRedirects ||
		made[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	next.Header.Del("Referer") // it holds the path, which may be a secret
	if !strings.EqualFold(next.URL.Host, made[0].URL.Host) {
		for name := range next.Header {
			if sensitive(name) {
				next.Header.Del(name)
			}
		}
	}
	return nil
}

// reason is the part of an error that says something. The URL, which net/http puts before it, may hold a secret.
func reason(ctx context.Context, err error, timeout time.Duration) error {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", timeout)
	}
	return err
}

// judge tells a message that was taken from one that was not.
func judge(resp *http.Response, raw []byte, now time.Time) *failure {
	code := resp.StatusCode
	if code/100 == 2 {
		return nil
	}
	f := &failure{code: code, err: fmt.Errorf("answered %s%s", statusLine(code), quoted(raw))}
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		f.absent = true
		f.after = retryAfter(resp.Header.Get("Retry-After"), raw, now)
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly:
	case code == http.StatusProxyAuthRequired, code == http.StatusUnauthorized, code == http.StatusForbidden:
		f.final = code != http.StatusProxyAuthRequired // a password may be replaced while the message waits
		f.absent = !f.final
	case code/100 == 3:
		f.final = true
		f.err = fmt.Errorf("answered %s: this redirect is not followed: want the address it leads to", statusLine(code))
	case code == http.StatusNotImplemented, code/100 != 5:
		f.final = true
	}
	return f
}

func statusLine(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// quoted is the beginning of an answer, in one line.
func quoted(raw []byte) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(bytes.TrimSpace(raw)), "?")), " ")
	if text == "" {
		return ""
	}
	if len(text) > mostQuoted {
		text = strings.ToValidUTF8(text[:mostQuoted], "") + "…"
	}
	return ": " + text
}

// retryAfter reads the header Retry-After, seconds or a date (RFC 9110, 10.2.3), or what Telegram writes into the body
// instead (https://core.telegram.org/bots/api#responseparameters). What makes no sense is 0.
func retryAfter(header string, raw []byte, now time.Time) time.Duration {
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
	return min(max(0, wait), longestRetryAfter)
}
