package kubeaware

import (
	"strings"
	"testing"
	"time"
)

// The known faults of kubeaware-cloudpool-proxy and their regression tests. Tests of its configuration are here, the others in
// the packages below. e2e is dev/e2e/cloudpool.
//
//	fault                                              package              test
//	a panic leaves the mutex locked                    internal/cloudpool   TestFaultPanicLeavesPoolLocked
//	an owner without "controller" causes a panic       internal/placement   TestRulesBlockNodeRemoval
//	nodes without allocatable cause a panic            internal/placement   TestRulesBlockNodeRemoval
//	machines and nodes are paired by external ID only  internal/cloudpool   TestPairingIsUnambiguousOrMissing
//	without external IDs nothing is checked            internal/cloudpool   TestFaultNodesWithoutExternalIDsAreUnguarded
//	PDBs are read in policy/v1beta1                    internal/cloudpool   TestFaultPDBsAreReadInRemovedVersion
//	a trailing slash bypasses the checks               internal/cloudpool   TestAmbiguousPathsMapToActions
//	                                                   internal/cloudpool   TestEvasivePathIsChecked
//	                                                   internal/cloudpool   TestRandomPathIsChecked
//	the query is dropped                               internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	an encoded path is decoded                         internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	hop-by-hop headers are forwarded                   internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	an error is appended to half an answer             internal/cloudpool   TestServerFaultsAreForwardedOrReported
//	redirects are followed                             internal/cloudpool   TestServerFaultsAreForwardedOrReported
//	                                                   internal/cloud/cloudpool/wire
//	                                                                        TestI7MalformedResponseIsNotAnEmptyPool
//	the reason for "not evictable" is inverted         internal/cloudpool   TestProtectedMachinesStayAndCount
//	a failed termination is blamed on Kubernetes       internal/cloudpool   TestFailedTerminationIsReported
//	                                                   e2e                  TestI7InvalidResponseToChangeIsRetried
//	errors of the backend say "backend: backend:"      here                 TestFaultBackendErrorIsReportedTwice
//	a numeric timeout causes a panic                   here                 TestFaultNumericTimeoutPanics
//	a % in the backend's message is mangled            internal/cloudpool   TestFailuresHaveDistinctCodesUnlessStrict
//	                                                   e2e                  TestRefusedRequestsReportReasonAndChangeNothing
//	a PDB counts in every namespace                    internal/placement   TestPDBsAreAppliedLikeEvictionAPI
//	all terms of a node affinity have to match         internal/placement   TestFaultAllNodeAffinityTermsMustMatch
//	matchFields are unknown                            internal/placement   TestFaultMatchFieldsOfNodeAffinityAreUnknown
//	finished pods count as load                        internal/placement   TestFaultFinishedPodsCountAsLoad
//	400, 404 and 502 of the backend become 500         internal/cloudpool   TestFailuresHaveDistinctCodesUnlessStrict
//	                                                   internal/cloudpool   TestServerAnswerToRaiseIsForwarded
//	a success other than 200 is a failure              internal/cloud/cloudpool/wire
//	                                                                        TestFaultSuccessOtherThan200IsAFailure
//	X-Forwarded-For is wrong for IPv6                  internal/cloudpool   TestIPv6ClientIsForwarded
//	X-Forwarded-For is empty on its own requests       internal/cloud/cloudpool/wire
//	                                                                        TestFaultOwnRequestsAreForwardedForNobody
//	one check for all victims of an update             e2e                  TestI9LastTwoWorkersAreNotBothRemoved
//	                                                   e2e                  TestI2SharedPDBIsNotExceeded

const kube = `"apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}}`

func TestFaultBackendErrorIsReportedTwice(t *testing.T) {
	for backend, want := range map[string]string{
		`{}`:                    "proxy config: backend: missing field: url",
		`{"url": "http://%zz"}`: "proxy config: backend: url: cannot be read as a URL",
	} {
		_, err := Parse([]byte(`{` + kube + `, "backend": ` + backend + `}`))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "backend:") != 1 {
			t.Errorf("%s: %v, want %q", backend, err, want)
		}
	}
}

func TestFaultNumericTimeoutPanics(t *testing.T) {
	for _, text := range []string{"5", "0", "-1", "60", "1.5", "1e3", `""`, `"5"`, "true", "[]", "{}"} {
		for _, key := range []string{"server", "apiServer", "backend"} {
			_, err := Parse([]byte(`{"` + key + `": {"timeout": ` + text + `}}`))
			if err == nil || !strings.Contains(err.Error(), "failed to parse proxy config: "+key+".timeout: ") || !strings.Contains(err.Error(), `"60s"`) {
				t.Errorf("%s.timeout: %s: %v, want the key and the wanted format", key, text, err)
			}
		}
	}
	c, err := Parse([]byte(`{` + kube + `, "backend": {"url": "http://b", "timeout": null}}`))
	if err != nil || c.Backend.Timeout != 5*time.Minute {
		t.Errorf("null: %s, %v; want the default", c.Backend.Timeout, err)
	}
}
