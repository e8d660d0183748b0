package cloud_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

const clientID = "00000000-0000-0000-0000-00000000000b"

// withIdentity returns a provider with tokens from the token service, as for a workload with an identity.
func (c *azureCloud) withIdentity(t *testing.T, tenant string) *azure.Provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a service account's token"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := c.config()
	config.Auth = azure.Auth{Method: azure.AuthWorkloadIdentity, TenantID: tenant, ClientID: clientID, TokenFile: file}
	p, err := azure.New(config, azure.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWorkloadIdentityReadsAndDeletes(t *testing.T) {
	t.Parallel()
	c := newAzure(t, uniform)
	p := c.withIdentity(t, emulator.DefaultTenant)
	instances, err := p.Instances(t.Context(), setName)
	if err != nil || len(instances) != len(c.VMs()) {
		t.Fatalf("%d instances, %v", len(instances), err)
	}
	if _, err := p.Delete(t.Context(), instances[0].ProviderID); err != nil {
		t.Fatal(err)
	}
	c.AwaitGone(t, instances[0].ProviderID)
}

func TestDefaultCredentialUsesWorkloadIdentity(t *testing.T) {
	c := newAzure(t, uniform)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a service account's token"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AZURE_CLIENT_ID": clientID, "AZURE_TENANT_ID": emulator.DefaultTenant, "AZURE_FEDERATED_TOKEN_FILE": file,
		"AZURE_TOKEN_CREDENTIALS": "prod",
	} {
		t.Setenv(name, value)
	}
	p, err := azure.New(c.config(), azure.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if g, err := p.Group(t.Context(), setName); err != nil || g.Size != len(c.VMs()) {
		t.Errorf("the group is %+v, %v", g, err)
	}
}

func TestI10BadCredentialIsNamed(t *testing.T) {
	c := newAzure(t, uniform)
	id := c.ProviderIDs()[0]
	t.Run("missing tenant", func(t *testing.T) {
		_, err := c.withIdentity(t, "00000000-0000-0000-0000-0000000000ee").Instance(t.Context(), id)
		checkPermissionError(t, err, "AZURE_TENANT_ID", "AADSTS90002")
	})
	t.Run("no credential", func(t *testing.T) {
		for _, name := range []string{"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET"} {
			t.Setenv(name, "")
		}
		t.Setenv("AZURE_TOKEN_CREDENTIALS", "WorkloadIdentityCredential")
		p, err := azure.New(c.config(), azure.Options{})
		if err == nil {
			_, err = p.Instance(t.Context(), id)
		}
		if err == nil || cloud.IsNotFound(err) || !strings.Contains(err.Error(), "WorkloadIdentityCredential") {
			t.Errorf("error %v, want one that names the credential", err)
		}
	})
	t.Run("revoked token", func(t *testing.T) {
		p := c.provider(t, c.config())
		c.RevokeTokens()
		_, err := p.Instance(t.Context(), id)
		checkPermissionError(t, err, "InvalidAuthenticationToken")
	})
	t.Run("no permission to delete", func(t *testing.T) {
		const action = "Microsoft.Compute/virtualMachineScaleSets/delete/action"
		if err := c.ARM.InjectFaults(emulator.ARMFault{Kind: emulator.ARMDenied, Action: action}); err != nil {
			t.Fatal(err)
		}
		_, err := c.Provider(t).Delete(t.Context(), id)
		checkPermissionError(t, err, "the credential lacks "+action+" on /subscriptions/")
	})
}

func checkPermissionError(t *testing.T, err error, says ...string) {
	t.Helper()
	if cloud.RefusalOf(err) != cloud.NoRight {
		t.Errorf("error %v, want the refusal %s", err, cloud.NoRight)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want it to contain %q", err, part)
		}
	}
}

func TestTokenIsSentOnlyToARM(t *testing.T) {
	t.Parallel()
	c, thief := newAzure(t, uniform), newAzure(t, uniform)
	if err := c.ARM.InjectFaults(emulator.ARMFault{Kind: emulator.ARMOtherHost, Message: thief.server.URL.Host}); err != nil {
		t.Fatal(err)
	}
	p := c.Provider(t)
	if l, err := p.Instances(t.Context(), setName); err == nil || l != nil || !strings.Contains(err.Error(), "the credential is only for") {
		t.Errorf("a list continues on another host: %d machines, %v", len(l), err)
	}
	op, err := p.Delete(t.Context(), c.ProviderIDs()[0])
	if err == nil {
		_, err = p.Status(t.Context(), op)
	}
	if err == nil || !strings.Contains(err.Error(), "the credential is only for") {
		t.Errorf("an operation continues on another host: %v", err)
	}
	if stolen := thief.Requests(); len(stolen) > 0 {
		t.Errorf("the other host received %d requests", len(stolen))
	}
}

func TestLostInstanceFailsNoOtherDeletionOfBatch(t *testing.T) {
	t.Parallel()
	c := newAzure(t, uniform)
	p := c.withLongBatchWindow().Provider(t)
	victims := c.ProviderIDs()[:3]
	results := make(chan error, len(victims))
	for _, v := range victims {
		go func() {
			_, err := p.Delete(t.Context(), v)
			results <- err
		}()
	}
	for len(c.Requests()) < len(victims) { // until Azure has received one request per victim
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("timeout before the machines were read")
		}
	}
	c.LoseInstance(t, victims[1])
	notFound := 0
	for range victims {
		switch err := <-results; {
		case cloud.IsNotFound(err):
			notFound++
		case err != nil:
			t.Error(err)
		}
	}
	if notFound != 1 {
		t.Errorf("%d deletions return NotFound, want 1, of the lost machine", notFound)
	}
	for _, v := range victims {
		c.AwaitGone(t, v)
	}
}

func TestProtectedInstanceIsNotDeleted(t *testing.T) {
	t.Parallel()
	c := newAzure(t, uniform)
	victim := c.VMs()[0]
	if err := c.ModifyVM(victim.Resource, func(vm *emulator.VM) { vm.Protected = true }); err != nil {
		t.Fatal(err)
	}
	p := c.Provider(t)
	for i, vm := range c.VMs() {
		m, err := p.Instance(t.Context(), vm.ProviderID)
		if protected := i == 0; err != nil || m.DeletionProtected != protected ||
			strings.Contains(m.DeletionProtectionReason, "protectFromScaleSetActions") != protected {
			t.Errorf("%+v, %v: want protected %t", m, err, protected)
		}
	}
	_, err := p.Delete(t.Context(), victim.ProviderID)
	if cloud.RefusalOf(err) != cloud.Protected || c.DeletionRequests() != 0 {
		t.Errorf("error %v after %d requests for deletion; want the refusal %s", err, c.DeletionRequests(), cloud.Protected)
	}
}

func TestUnrecognizedStateIsUnknown(t *testing.T) {
	t.Parallel()
	c := newAzure(t, uniform)
	vm := c.VMs()[0]
	for _, tc := range []struct {
		state emulator.ProvisioningState
		power emulator.PowerState
		want  cloud.State
	}{
		{emulator.Succeeded, emulator.Running, cloud.Running},
		{emulator.Updating, emulator.Running, cloud.Running},
		{emulator.Succeeded, emulator.Stopped, cloud.Stopped},
		{emulator.Succeeded, emulator.Deallocated, cloud.Stopped},
		{emulator.Creating, emulator.Stopped, cloud.Pending},
		{emulator.Deleting, emulator.Running, cloud.Deleting},
		{emulator.Failed, emulator.Running, cloud.Running}, // its last operation failed, but it runs
		{emulator.Failed, emulator.Stopped, cloud.Failed},
		{emulator.Failed, "", cloud.Failed},
		{"Hibernating", emulator.Running, cloud.Unknown},
		{"", "", cloud.Unknown},
	} {
		if err := c.ModifyVM(vm.Resource, func(vm *emulator.VM) { vm.State, vm.Power = tc.state, tc.power }); err != nil {
			t.Fatal(err)
		}
		i, err := c.Provider(t).Instance(t.Context(), vm.ProviderID)
		if err != nil || i.State != tc.want || (tc.want == cloud.Failed) != (i.Message != "") {
			t.Errorf("%s, %s: %+v, %v; want %s", tc.state, tc.power, i, err, tc.want)
		}
	}
}
