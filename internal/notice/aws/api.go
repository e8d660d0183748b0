package aws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	formType       = "application/x-www-form-urlencoded; charset=utf-8"
	apiVersion     = "2011-01-01" // of the Auto Scaling API
	apiService     = "autoscaling"
	apiTimeout     = 10 * time.Second
	maxAnswerBytes = 256 << 10
)

// apiError is an error that the AWS API has returned.
type apiError struct {
	status        int
	code, message string
}

func (e *apiError) Error() string {
	return fmt.Sprintf("status %d, %s: %s", e.status, poll.Quote(e.code), poll.Quote(e.message))
}

// isDenied reports whether the role lacks a permission. Credentials that have expired, or that AWS does not know yet, are
// refused with the status 403 too, but with another code.
func (e *apiError) isDenied() bool {
	return e.status == http.StatusForbidden && e.code == "" || IsDenied(e.code)
}

// IsDenied reports whether an error code of AWS says that the role lacks a permission.
func IsDenied(code string) bool {
	return code == "AccessDenied" || code == "AccessDeniedException" || code == "UnauthorizedOperation"
}

// refusesCredentials reports whether other credentials of the same role may be accepted.
func (e *apiError) refusesCredentials() bool {
	return e.status == http.StatusForbidden && !e.isDenied()
}

func (e *apiError) isNotWaiting() bool { return IsNotWaiting(e.code, e.message) }

// IsNotWaiting reports whether an error of Auto Scaling says that no lifecycle action waits for the instance: it was
// completed, or its time has passed. A wrong name of the group or the hook has the same code, with another message.
func IsNotWaiting(code, message string) bool {
	return code == "ValidationError" && strings.Contains(message, "No active Lifecycle Action found")
}

// apiClient sends requests to AWS, through a proxy if the environment names one. Requests to services on the node, such as
// EKS Pod Identity, use no proxy: it could not reach them, and would get the pod's token. It follows no redirect.
type apiClient struct{ http *http.Client }

func newAPIClient() *apiClient {
	return &apiClient{&http.Client{
		Transport:     &http.Transport{Proxy: findProxy, MaxIdleConns: 2, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: apiTimeout, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func findProxy(r *http.Request) (*url.URL, error) {
	if ip := net.ParseIP(r.URL.Hostname()); ip.IsLinkLocalUnicast() || ip.Equal(podIdentityIPv6) {
		return nil, nil //nolint:nilnil // no proxy
	}
	return http.ProxyFromEnvironment(r)
}

// podIdentityIPv6 is the address of EKS Pod Identity on nodes with IPv6. The one with IPv4 is link-local.
var podIdentityIPv6 = net.ParseIP("fd00:ec2::23")

// send sends a request and returns the body of a response with the status 200. A refused request is an [*apiError].
func (c *apiClient) send(ctx context.Context, method, url string, header http.Header, body []byte) ([]byte, error) {
	request, err := newAPIRequest(ctx, method, url, header, body)
	if err != nil {
		return nil, err
	}
	return c.do(request)
}

func newAPIRequest(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	return request, nil
}

func (c *apiClient) do(request *http.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(request.Context(), apiTimeout)
	defer cancel()
	response, err := c.http.Do(request.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // the body may not have been read to its end
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), err)
	case len(answer) > maxAnswerBytes:
		return nil, fmt.Errorf("%s: the response has more than %d bytes", request.URL.Redacted(), maxAnswerBytes)
	case response.StatusCode != http.StatusOK:
		return nil, &apiError{response.StatusCode, findElement(string(answer), "Code"), findElement(string(answer), "Message")}
	}
	return answer, nil
}

// autoScaling calls the Auto Scaling API.
type autoScaling struct {
	metadata    *Client
	http        *apiClient
	credentials *credentialSource
	endpoint    string // empty until it is known
	region      string
}

func newAutoScaling(endpoint string, metadata *Client) *autoScaling {
	client := newAPIClient()
	return &autoScaling{
		metadata: metadata, http: client, endpoint: strings.TrimSuffix(endpoint, "/"),
		credentials: &credentialSource{metadata: metadata, http: client, getenv: os.Getenv},
	}
}

// call sends one action with its parameters, and returns the XML document of the response.
func (a *autoScaling) call(ctx context.Context, action string, parameters url.Values) (string, error) {
	if err := a.locate(ctx); err != nil {
		return "", err
	}
	keys, err := a.credentials.get(ctx, a.region)
	if err != nil {
		return "", fmt.Errorf("credentials for autoscaling:%s: %w", action, err)
	}
	parameters.Set("Action", action)
	parameters.Set("Version", apiVersion)
	body := []byte(parameters.Encode())
	request, err := newAPIRequest(ctx, http.MethodPost, a.endpoint+"/", http.Header{"Content-Type": {formType}}, body)
	if err != nil {
		return "", err
	}
	keys.sign(request, body, a.region, apiService, time.Now().Add(-a.metadata.ClockAhead()))
	answer, err := a.http.do(request)
	if refused := (*apiError)(nil); errors.As(err, &refused) && refused.refusesCredentials() {
		a.credentials.drop()
	}
	if err != nil {
		return "", fmt.Errorf("autoscaling:%s: %w", action, err)
	}
	return string(answer), nil
}

// locate finds the region and the endpoint of the API.
func (a *autoScaling) locate(ctx context.Context) error {
	if a.region == "" {
		region := os.Getenv(regionVariable)
		if region == "" {
			body, _, err := a.metadata.Get(ctx, regionPath)
			if err != nil {
				return err
			}
			region = strings.TrimSpace(string(body))
		}
		if !isHostPart(region) {
			return fmt.Errorf("region: %s: want a name such as eu-west-1", poll.Quote(region))
		}
		a.region = region
	}
	var err error
	if a.endpoint == "" {
		a.endpoint, err = findEndpoint(ctx, a.metadata, apiService, a.region)
	}
	return err
}

// findEndpoint returns the public endpoint of a service in a region. Each partition of AWS has its own domain, which the
// metadata service of the instance tells.
func findEndpoint(ctx context.Context, metadata *Client, service, region string) (string, error) {
	body, found, err := metadata.Get(ctx, domainPath)
	if err != nil {
		return "", err
	}
	domain := strings.TrimSpace(string(body))
	if !found || !isHostPart(domain) {
		domain = "amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			domain = "amazonaws.com.cn"
		}
	}
	return "https://" + service + "." + region + "." + domain, nil
}

// isHostPart reports whether a text can be a part of a host name.
func isHostPart(s string) bool {
	return s != "" && len(s) < 100 && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// findElement returns the text of the first XML element with the name, or "". The elements in responses of this API have
// no attributes. So no XML decoder is needed, which would be large.
func findElement(document, name string) string {
	all := findElements(document, name)
	if len(all) == 0 {
		return ""
	}
	return unescapeXML.Replace(strings.TrimSpace(all[0]))
}

// findElements returns the content of each XML element with the name. The elements must not contain each other.
func findElements(document, name string) []string {
	var all []string
	for {
		_, rest, found := strings.Cut(document, "<"+name+">")
		content, after, closed := strings.Cut(rest, "</"+name+">")
		if !found || !closed {
			return all
		}
		all = append(all, content)
		document = after
	}
}

var unescapeXML = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&quot;", `"`, "&apos;", "'", "&#34;", `"`, "&#39;", "'", "&amp;", "&")
