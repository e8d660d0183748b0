// Package eviction asks Azure to act as if it took a Spot machine away, so that a user can watch the whole path work:
// the notice in Scheduled Events, the drain, the end of the machine.
//
// It uses the API that Azure has for it, "Simulate Eviction" of Virtual Machine Scale Set VMs and of Virtual Machines
// (https://learn.microsoft.com/azure/virtual-machines/spot-vms#simulate-an-eviction), and is linked into the
// command-line program only: its libraries are much larger than the node agent may be.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// Target is one machine in the terms of Azure Resource Manager.
type Target struct {
	Subscription  string
	ResourceGroup string
	// ScaleSet is the uniform scale set; empty for a machine that stands alone or in a flexible scale set.
	ScaleSet string
	// Name is the machine's name or, in a scale set, its instance number.
	Name string
}

// ParseProviderID reads the target from a node's spec.providerID.
func ParseProviderID(id string) (Target, error) {
	machine, err := providerid.Parse(id)
	if err != nil {
		return Target{}, fmt.Errorf("node spec.providerID: %w", err)
	}
	return Target(machine), nil
}

// String spells the machine for people.
func (t Target) String() string {
	if t.ScaleSet == "" {
		return fmt.Sprintf("virtual machine %s in resource group %s", t.Name, t.ResourceGroup)
	}
	return fmt.Sprintf("instance %s of scale set %s in resource group %s", t.Name, t.ScaleSet, t.ResourceGroup)
}

// Options say where Azure Resource Manager is, and as whom it is asked.
type Options struct {
	// Endpoint is its base URL; empty is that of the public cloud. One with http must be on the loopback interface,
	// and is asked without Azure's credentials: it is an emulator.
	Endpoint string
	// Credential is azidentity's DefaultAzureCredential when nil.
	Credential azcore.TokenCredential
}

// Simulator asks Azure Resource Manager. It may be used by several goroutines at once.
type Simulator struct {
	credential azcore.TokenCredential
	options    arm.ClientOptions
}

// New checks the options and finds credentials, without asking anybody for a token yet.
func New(o Options) (*Simulator, error) {
	s := &Simulator{credential: o.Credential, options: arm.ClientOptions{DisableRPRegistration: true}}
	if o.Endpoint != "" {
		base, err := parseEndpoint(o.Endpoint)
		if err != nil {
			return nil, err
		}
		s.options.Cloud = cloud.Configuration{
			ActiveDirectoryAuthorityHost: cloud.AzurePublic.ActiveDirectoryAuthorityHost,
			Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
				cloud.ResourceManager: {Endpoint: base.String(), Audience: base.String()},
			},
		}
		if base.Scheme == "http" {
			s.credential = nobody{}
			s.options.InsecureAllowCredentialWithHTTP = true
		}
	}
	if s.credential != nil {
		return s, nil
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("credentials for Azure: %w", err)
	}
	s.credential = credential
	return s, nil
}

func parseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q: %w: want a URL such as https://management.azure.com", endpoint, err)
	case u.User != nil:
		return nil, errors.New("there are credentials in the URL: want none, such as https://management.azure.com")
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return nil, fmt.Errorf("%q: want a URL such as https://management.azure.com", endpoint)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, fmt.Errorf("%q: want https, since Azure's credentials go there; http is for an emulator on the "+
			"loopback interface", endpoint)
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Simulate asks for the eviction of one machine. Azure answers at once and posts the notice some moments later.
func (s *Simulator) Simulate(ctx context.Context, t Target) error {
	err := s.ask(ctx, t)
	if err == nil {
		return nil
	}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %w", t, err)
	}
	return fmt.Errorf("%s: Azure answered %d %s%s", t, answer.StatusCode, answer.ErrorCode, hint(answer.StatusCode))
}

func (s *Simulator) ask(ctx context.Context, t Target) error {
	if t.ScaleSet == "" {
		c, err := armcompute.NewVirtualMachinesClient(t.Subscription, s.credential, &s.options)
		if err != nil {
			return err
		}
		_, err = c.SimulateEviction(ctx, t.ResourceGroup, t.Name, nil)
		return err
	}
	c, err := armcompute.NewVirtualMachineScaleSetVMsClient(t.Subscription, s.credential, &s.options)
	if err != nil {
		return err
	}
	_, err = c.SimulateEviction(ctx, t.ResourceGroup, t.ScaleSet, t.Name, nil)
	return err
}

// hint says what a status usually means here.
func hint(status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ": these credentials may not do that; want the action " +
			"Microsoft.Compute/virtualMachineScaleSets/virtualMachines/simulateEviction/action (or " +
			"virtualMachines/simulateEviction/action), which Virtual Machine Contributor has"
	case http.StatusNotFound:
		return ": there is no such machine, or these credentials may not see it"
	case http.StatusConflict, http.StatusBadRequest:
		return ": want a running machine with priority Spot"
	}
	return ""
}

// nobody is the credential for an emulator, which asks for none.
type nobody struct{}

func (nobody) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "emulator", ExpiresOn: time.Now().Add(time.Hour)}, nil
}
