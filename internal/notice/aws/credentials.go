package aws

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// The variables of the environment that the AWS tools use, and that EKS sets in pods with an IAM role.
const (
	keyIDVariable         = "AWS_ACCESS_KEY_ID"
	secretVariable        = "AWS_SECRET_ACCESS_KEY" //nolint:gosec // the name of a variable
	sessionTokenVariable  = "AWS_SESSION_TOKEN"     //nolint:gosec // the name of a variable
	regionVariable        = "AWS_REGION"
	roleVariable          = "AWS_ROLE_ARN"
	webIdentityVariable   = "AWS_WEB_IDENTITY_TOKEN_FILE"
	podIdentityVariable   = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
	podTokenFileVariable  = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" //nolint:gosec // the name of a variable
	stsEndpointVariable   = "AWS_ENDPOINT_URL_STS"
	instanceRolePath      = "/latest/meta-data/iam/security-credentials/"
	regionPath            = "/latest/meta-data/placement/region"
	domainPath            = "/latest/meta-data/services/domain"
	credentialsRenewal    = 5 * time.Minute // before they expire
	maxIdentityTokenBytes = 64 << 10
)

// credentialSource gets the credentials of the pod or of the instance. It is safe for concurrent use.
type credentialSource struct {
	metadata *Client
	http     *apiClient
	getenv   func(string) string

	mu      sync.Mutex
	current credentials
}

// get returns valid credentials. They come from the first of these places that the pod has: the variables with a key, a
// web identity (IRSA), EKS Pod Identity, and the role of the instance.
func (s *credentialSource) get(ctx context.Context, region string) (credentials, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.current.keyID != "" && (s.current.expires.IsZero() || now.Before(s.current.expires.Add(-credentialsRenewal))) {
		return s.current, nil
	}
	var fetched credentials
	var err error
	switch {
	case s.getenv(keyIDVariable) != "":
		fetched = credentials{keyID: s.getenv(keyIDVariable), secret: s.getenv(secretVariable), sessionToken: s.getenv(sessionTokenVariable)}
	case s.getenv(webIdentityVariable) != "":
		fetched, err = s.assumeRole(ctx, region)
	case s.getenv(podIdentityVariable) != "":
		fetched, err = s.readPodIdentity(ctx)
	default:
		fetched, err = s.readInstanceRole(ctx)
	}
	switch {
	case err == nil:
		s.current = fetched
	case s.current.keyID != "" && now.Before(s.current.expires):
		return s.current, nil
	}
	return fetched, err
}

// drop makes the next call of get request new credentials.
func (s *credentialSource) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = credentials{}
}

// readInstanceRole reads the credentials of the instance's role from the metadata service.
func (s *credentialSource) readInstanceRole(ctx context.Context) (credentials, error) {
	roles, found, err := s.metadata.Get(ctx, instanceRolePath)
	role, _, _ := strings.Cut(strings.TrimSpace(string(roles)), "\n")
	switch {
	case err != nil:
		return credentials{}, err
	case !found || role == "":
		return credentials{}, errNoRole
	}
	document, found, err := s.metadata.Get(ctx, instanceRolePath+url.PathEscape(role))
	switch {
	case err != nil:
		return credentials{}, err
	case !found:
		return credentials{}, errNoRole
	}
	return parseCredentials("the role "+role+" of the instance", document)
}

// errNoRole means that no place has credentials.
var errNoRole = errors.New("neither the pod nor the instance has an IAM role")

// readPodIdentity reads the credentials from the agent of EKS Pod Identity on the node.
func (s *credentialSource) readPodIdentity(ctx context.Context) (credentials, error) {
	header := http.Header{}
	if path := s.getenv(podTokenFileVariable); path != "" {
		token, err := readTokenFile(path)
		if err != nil {
			return credentials{}, fmt.Errorf("%s: %w", podTokenFileVariable, err)
		}
		header.Set("Authorization", token)
	}
	document, err := s.http.send(ctx, http.MethodGet, s.getenv(podIdentityVariable), header, nil)
	if err != nil {
		return credentials{}, err
	}
	return parseCredentials("EKS Pod Identity", document)
}

// assumeRole exchanges the pod's ServiceAccount token for credentials (IRSA).
func (s *credentialSource) assumeRole(ctx context.Context, region string) (credentials, error) {
	token, err := readTokenFile(s.getenv(webIdentityVariable))
	if err != nil {
		return credentials{}, fmt.Errorf("%s: %w", webIdentityVariable, err)
	}
	endpoint := s.getenv(stsEndpointVariable)
	if endpoint == "" {
		if endpoint, err = findEndpoint(ctx, s.metadata, "sts", region); err != nil {
			return credentials{}, err
		}
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {s.getenv(roleVariable)},
		"RoleSessionName": {"slipway-agent"}, "WebIdentityToken": {token},
	}
	document, err := s.http.send(ctx, http.MethodPost, endpoint, http.Header{"Content-Type": {formType}}, []byte(form.Encode()))
	if err != nil {
		return credentials{}, err
	}
	text := string(document)
	c := credentials{keyID: findElement(text, "AccessKeyId"), secret: findElement(text, "SecretAccessKey"), sessionToken: findElement(text, "SessionToken")}
	if c.expires, err = time.Parse(time.RFC3339, findElement(text, "Expiration")); err != nil {
		c.expires = time.Now() // without a time they are requested again at once
	}
	if c.keyID == "" || c.secret == "" {
		return credentials{}, fmt.Errorf("%s: the response has no credentials", endpoint)
	}
	return c, nil
}

func readTokenFile(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if token := strings.TrimSpace(string(raw)); token != "" && len(token) <= maxIdentityTokenBytes {
		return token, nil
	}
	return "", fmt.Errorf("%s: has %d bytes: want a token of at most %d bytes", path, len(raw), maxIdentityTokenBytes)
}

// parseCredentials parses a document of the metadata service or of EKS Pod Identity. It never quotes the document, which
// is secret.
func parseCredentials(from string, document []byte) (credentials, error) {
	var d struct {
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      time.Time
		Code            string
	}
	if err := json.Unmarshal(document, &d); err != nil || d.AccessKeyID == "" || d.SecretAccessKey == "" {
		return credentials{}, fmt.Errorf("%s: the response has no credentials (Code %q)", from, d.Code)
	}
	return credentials{keyID: d.AccessKeyID, secret: d.SecretAccessKey, sessionToken: d.Token, expires: d.Expiration}, nil
}
