package openstack_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	gopher "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func keystone(t *testing.T, c *openstackdev.Cloud, user string) *gophercloud.ServiceClient {
	t.Helper()
	client, err := gopher.NewIdentityV3(as(t, c, user), gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inline returns a configuration that contains its credential, as the old five fields did.
func inline(t *testing.T, c *openstackdev.Cloud, group openstack.GroupConfig) openstack.Config {
	t.Helper()
	password, err := c.Password()
	if err != nil {
		t.Fatal(err)
	}
	config := configOf(c, group)
	config.Cloud, config.CloudsFile = "", ""
	config.Auth = &openstack.Auth{
		URL: c.IDs.Endpoints["identity"], Username: openstackdev.DemoCloud, Password: password, ProjectID: c.IDs.Project, UserDomainName: "Default",
	}
	return config
}

func TestEveryCredentialMethodWorks(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	application, err := applicationcredentials.Create(t.Context(), keystone(t, c, openstackdev.DemoCloud), c.IDs.User,
		applicationcredentials.CreateOpts{Name: g.Name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = applicationcredentials.Delete(context.WithoutCancel(t.Context()), keystone(t, c, openstackdev.DemoCloud), c.IDs.User, application.ID).ExtractErr()
	})
	five := inline(t, c, g)
	credential := inline(t, c, g)
	credential.Auth = &openstack.Auth{
		URL: c.IDs.Endpoints["identity"], ApplicationCredentialID: application.ID, ApplicationCredentialSecret: application.Secret,
	}
	for name, config := range map[string]openstack.Config{"five fields": five, "application credential": credential, "clouds.yaml": configOf(c, g)} {
		if err := providerOf(t, config, openstack.Options{}).CheckConfiguredNames(t.Context()); err != nil {
			// A key pair belongs to its user, and an application credential belongs to the same user.
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInvalidCredentialIsRefused(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	password, err := c.Password()
	if err != nil {
		t.Fatal(err)
	}
	admin := keystone(t, c, openstackdev.AdminCloud)
	outsider, err := users.Create(t.Context(), admin, users.CreateOpts{Name: g.Name, DomainID: "default", Password: password}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = users.Delete(context.WithoutCancel(t.Context()), admin, outsider.ID).ExtractErr() })
	for name, change := range map[string]func(*openstack.Auth){
		"wrong password":              func(a *openstack.Auth) { a.Password = "wrong" },
		"no such user":                func(a *openstack.Auth) { a.Username = "nobody" },
		"no role in the project":      func(a *openstack.Auth) { a.Username = outsider.Name },
		"project that does not exist": func(a *openstack.Auth) { a.ProjectID = strings.Repeat("0", 32) },
	} {
		config := inline(t, c, g)
		change(config.Auth)
		p := providerOf(t, config, openstack.Options{})
		for range 2 {
			if _, err := p.Group(t.Context(), g.Name); cloud.RefusalOf(err) != cloud.NoRight {
				t.Errorf("%s: %v, want the refusal %s", name, err, cloud.NoRight)
			}
		}
		if _, err := p.Instance(t.Context(), idOf(c.IDs.Image)); err == nil || cloud.IsNotFound(err) {
			t.Errorf("I7: %s: %v", name, err)
		}
	}
	config := inline(t, c, g)
	config.Region = "LK" // the OpenStack autoscaler's built-in region
	if err := providerOf(t, config, openstack.Options{}).CheckConfiguredNames(t.Context()); cloud.RefusalOf(err) != cloud.Invalid || !strings.Contains(err.Error(), "RegionOne") {
		t.Errorf("a missing region: %v", err)
	}
}

func TestExpiredTokenIsRenewed(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	proxy := newNovaProxy(t, c.IDs.Endpoints["compute"])
	g := groupOf(newGroupName(t))
	config := configOf(c, g)
	config.Endpoints = map[string]string{"compute": proxy.Compute()}
	p := providerOf(t, config, openstack.Options{})
	if _, err := p.Group(t.Context(), g.Name); err != nil {
		t.Fatal(err)
	}
	seen := proxy.seen()
	old := seen[len(seen)-1].token
	if err := tokens.Revoke(t.Context(), keystone(t, c, openstackdev.AdminCloud), old).Err; err != nil {
		t.Fatal(err)
	}
	renewed := old
	for renewed == old { // each worker of Nova caches a token for two seconds
		look(t)
		if _, err := p.Group(t.Context(), g.Name); err != nil {
			t.Fatalf("with a revoked token: %v", err)
		}
		seen = proxy.seen()
		renewed = seen[len(seen)-1].token
	}
	if renewed == "" {
		t.Error("the call succeeded without a token")
	}
	// This is a regression test: the OpenStack autoscaler signed in for each call.
	for range 3 {
		if _, err := p.Group(t.Context(), g.Name); err != nil {
			t.Fatal(err)
		}
	}
	if seen = proxy.seen(); seen[len(seen)-1].token != renewed {
		t.Error("each call requests a token")
	}
}
