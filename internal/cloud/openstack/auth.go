package openstack

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// login holds the credential, the endpoints to use, and TLS settings.
type login struct {
	auth         gophercloud.AuthOptions
	availability gophercloud.Availability
	region       string
	tls          *tls.Config
}

// resolveLogin reads the credential. All three sources go through the parser of clouds.yaml, so that they behave the same.
func (c *Config) resolveLogin() (*login, error) {
	options, from, err := c.credentialSource()
	if err != nil {
		return nil, fmt.Errorf("openstack %s: %w", from, err)
	}
	if c.Region != "" {
		options = append(options, clouds.WithRegion(c.Region))
	}
	if c.Interface != "" {
		options = append(options, clouds.WithEndpointType(c.Interface))
	}
	auth, endpoints, secure, err := parseCloudsYAML(options)
	if err != nil {
		return nil, fmt.Errorf("openstack %s: %w", from, err)
	}
	l := &login{auth: auth, availability: endpoints.Availability, region: endpoints.Region, tls: secure}
	if err := l.validateAndNormalize(); err != nil {
		return nil, fmt.Errorf("openstack %s: %w", from, err)
	}
	l.auth.AllowReauth = true
	return l, l.configureTLS(c.CAFile)
}

// credentialSource returns the options for the parser of clouds.yaml, and the name of the source for errors.
func (c *Config) credentialSource() (options []clouds.ParseOption, from string, err error) {
	switch {
	case c.Auth != nil:
		from = "auth"
		entry, err := c.Auth.toAuthInfo()
		if err != nil {
			return nil, from, err
		}
		options, err = c.cloudsYAMLOptions(entry)
		return options, from, err
	case c.Cloud != "" || c.CloudsFile != "" || os.Getenv("OS_CLOUD") != "":
		from = "cloud"
		if c.Cloud != "" {
			options = append(options, clouds.WithCloudName(c.Cloud))
		}
		if c.CloudsFile != "" {
			if _, err := os.Stat(c.CloudsFile); err != nil {
				return nil, "cloudsFile", err
			}
			options = append(options, clouds.WithLocations(c.CloudsFile))
		}
		return options, from, nil
	}
	from = "environment"
	if os.Getenv("OS_AUTH_URL") == "" {
		return nil, from, errors.New("OS_CLOUD and OS_AUTH_URL are not set: want one of them, or cloud, or auth in the configuration")
	}
	options, err = c.cloudsYAMLOptions(authInfoFromEnvironment())
	return options, from, err
}

// cloudsYAMLOptions builds a clouds.yaml with one entry. JSON is valid YAML.
func (c *Config) cloudsYAMLOptions(entry *clouds.AuthInfo) ([]clouds.ParseOption, error) {
	const name = "slipway"
	raw, err := json.Marshal(clouds.Clouds{Clouds: map[string]clouds.Cloud{name: {AuthInfo: entry, CACertFile: os.Getenv("OS_CACERT")}}})
	if err != nil {
		return nil, err
	}
	return []clouds.ParseOption{
		clouds.WithCloudName(name), clouds.WithCloudsYAML(strings.NewReader(string(raw))), clouds.WithSecureYAML(strings.NewReader("{}")),
	}, nil
}

func (a *Auth) toAuthInfo() (*clouds.AuthInfo, error) {
	password, err := readSecret(a.Password, "passwordFile", a.PasswordFile)
	if err != nil {
		return nil, err
	}
	secret, err := readSecret(a.ApplicationCredentialSecret, "applicationCredentialSecretFile", a.ApplicationCredentialSecretFile)
	if err != nil {
		return nil, err
	}
	return &clouds.AuthInfo{
		AuthURL: a.URL, Username: a.Username, UserID: a.UserID, UserDomainName: a.UserDomainName, UserDomainID: a.UserDomainID,
		Password: password, ProjectName: a.ProjectName, ProjectID: a.ProjectID,
		ProjectDomainName: a.ProjectDomainName, ProjectDomainID: a.ProjectDomainID,
		ApplicationCredentialID: a.ApplicationCredentialID, ApplicationCredentialName: a.ApplicationCredentialName,
		ApplicationCredentialSecret: secret,
	}, nil
}

func readSecret(value, field, path string) (string, error) {
	if path == "" {
		return value, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	secret := strings.TrimRight(string(raw), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s: %s is empty", field, path)
	}
	return secret, nil
}

// authInfoFromEnvironment reads the variables of an openrc file, including the older names from before Keystone v3.
func authInfoFromEnvironment() *clouds.AuthInfo {
	first := func(names ...string) string {
		for _, name := range names {
			if value := os.Getenv(name); value != "" {
				return value
			}
		}
		return ""
	}
	return &clouds.AuthInfo{
		AuthURL: first("OS_AUTH_URL"), Username: first("OS_USERNAME"), UserID: first("OS_USER_ID", "OS_USERID"), Password: first("OS_PASSWORD"),
		UserDomainName: first("OS_USER_DOMAIN_NAME", "OS_DOMAIN_NAME"), UserDomainID: first("OS_USER_DOMAIN_ID", "OS_DOMAIN_ID"),
		ProjectName: first("OS_PROJECT_NAME", "OS_TENANT_NAME"), ProjectID: first("OS_PROJECT_ID", "OS_TENANT_ID"),
		ProjectDomainName:           first("OS_PROJECT_DOMAIN_NAME", "OS_DOMAIN_NAME"),
		ProjectDomainID:             first("OS_PROJECT_DOMAIN_ID", "OS_DOMAIN_ID"),
		ApplicationCredentialID:     first("OS_APPLICATION_CREDENTIAL_ID"),
		ApplicationCredentialName:   first("OS_APPLICATION_CREDENTIAL_NAME"),
		ApplicationCredentialSecret: first("OS_APPLICATION_CREDENTIAL_SECRET"),
	}
}

// parseCloudsYAML calls clouds.Parse, which panics on an entry without auth.
func parseCloudsYAML(options []clouds.ParseOption) (a gophercloud.AuthOptions, e gophercloud.EndpointOpts, t *tls.Config, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the entry of clouds.yaml cannot be parsed: want one with auth")
		}
	}()
	return clouds.Parse(options...)
}

// validateAndNormalize returns an error for a credential that cannot be renewed or has no project.
func (l *login) validateAndNormalize() error {
	a := l.auth
	switch {
	case a.IdentityEndpoint == "":
		return errors.New("auth_url: is not set: want the URL of Keystone, such as https://keystone.example.com:5000/v3")
	case a.TokenID != "":
		return errors.New("token: a token cannot be renewed: want a password or an application credential")
	case a.ApplicationCredentialID != "" || a.ApplicationCredentialName != "":
		if a.ApplicationCredentialSecret == "" {
			return errors.New("application_credential_secret: is not set")
		}
		// An application credential has one project. Keystone refuses a scope next to it.
		l.auth.Scope, l.auth.TenantID, l.auth.TenantName = nil, "", ""
		return nil
	case a.Username == "" && a.UserID == "":
		return errors.New("username: is not set: want username or user_id, or an application credential")
	case a.Password == "":
		return errors.New("password: is not set")
	case a.Scope == nil || a.Scope.ProjectID == "" && a.Scope.ProjectName == "" && a.Scope.TrustID == "":
		return errors.New("project_id: is not set: want project_id, or project_name with project_domain_name")
	}
	return nil
}

// configureTLS adds the certificate authorities of a file.
func (l *login) configureTLS(path string) error {
	if l.tls == nil {
		l.tls = &tls.Config{}
	}
	l.tls.MinVersion = tls.VersionTLS12
	pool, err := cloud.LoadCertPool(path)
	if err != nil {
		return fmt.Errorf("openstack %w", err)
	}
	if pool != nil {
		l.tls.RootCAs = pool
	}
	return nil
}
