// Package eviction asks Azure to simulate the eviction of a Spot instance. A user can then watch the notice in
// Scheduled Events, the drain, and the end of the instance.
//
// It uses the "Simulate Eviction" API of Virtual Machine Scale Set VMs and of Virtual Machines
// (https://learn.microsoft.com/azure/virtual-machines/spot-vms#simulate-an-eviction). Only the command-line program
// imports this package, because its libraries are too large for the agent.
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

// Target names one virtual machine in Azure Resource Manager.
type Target struct {
	Subscription  string
	ResourceGroup string
	// ScaleSet is the uniform scale set; empty for a single instance and for a flexible scale set.
	ScaleSet string
	// Name is the name of the virtual machine or, in a uniform scale set, the instance number.
	Name string
}

// ParseProviderID parses a Node's spec.providerID.
func ParseProviderID(id string) (Target, error) {
	machine, err := providerid.Parse(id)
	if err != nil {
		return Target{}, fmt.Errorf("node spec.providerID: %w", err)
	}
	return Target(machine), nil
}

func (t Target) String() string {
	if t.ScaleSet == "" {
		return fmt.Sprintf("virtual machine %s in resource group %s", t.Name, t.ResourceGroup)
	}
	return fmt.Sprintf("instance %s of scale set %s in resource group %s", t.Name, t.ScaleSet, t.ResourceGroup)
}

// Options selects the endpoint and the credential.
type Options struct {
	// Endpoint is the URL of Azure Resource Manager. Empty is the public cloud. A URL with http is an emulator on the
	// loopback interface and receives no Azure credential.
	Endpoint string
	// Credential is azidentity's DefaultAzureCredential if nil.
	Credential azcore.TokenCredential
}

// Simulator requests evictions. It is safe for concurrent use.
type Simulator struct {
	credential azcore.TokenCredential
	options    arm.ClientOptions
}

// New validates the options and selects a credential. It requests no token.
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
			s.credential = emulatorCredential{}
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
		return nil, errors.New("the URL contains credentials: want none, such as https://management.azure.com")
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return nil, fmt.Errorf("%q: want a URL such as https://management.azure.com", endpoint)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, fmt.Errorf("%q: want https, because it receives the Azure credential; http is only for an emulator on the "+
			"loopback interface", endpoint)
	}
	return u, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Simulate requests the eviction of one instance. Azure responds immediately and announces the eviction a few moments
// later.
func (s *Simulator) Simulate(ctx context.Context, t Target) error {
	err := s.simulateEviction(ctx, t)
	if err == nil {
		return nil
	}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %w", t, err)
	}
	return fmt.Errorf("%s: Azure responded %d %s%s", t, answer.StatusCode, answer.ErrorCode, statusHint(answer.StatusCode))
}

func (s *Simulator) simulateEviction(ctx context.Context, t Target) error {
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

// statusHint returns the usual cause of an HTTP error status, for an error message.
func statusHint(status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ": the credential lacks the action " +
			"Microsoft.Compute/virtualMachineScaleSets/virtualMachines/simulateEviction/action (or " +
			"virtualMachines/simulateEviction/action); the role Virtual Machine Contributor has it"
	case http.StatusNotFound:
		return ": the instance does not exist, or the credential may not read it"
	case http.StatusConflict, http.StatusBadRequest:
		return ": want a running Spot instance"
	}
	return ""
}

type emulatorCredential struct{}

func (emulatorCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "emulator", ExpiresOn: time.Now().Add(time.Hour)}, nil
}
