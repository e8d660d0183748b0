package kubeaware

import (
	"strings"
	"testing"
	"time"
)

// The known faults of kubeaware-cloudpool-proxy, each with the tests that keep it from coming back. Those of its
// configuration are here; the others are where that is which they are about. e2e is dev/e2e/cloudpool.
//
//	fault                                              package              test
//	a panic leaves the mutex locked                    internal/cloudpool   TestFaultAPanicLeavesThePoolLocked
//	an owner without "controller" is a panic           internal/placement   TestRulesBlockNodeRemoval
//	nodes with nothing to allocate are a panic         internal/placement   TestRulesBlockNodeRemoval
//	machines are nodes by their external ID alone      internal/cloudpool   TestMachinesAndNodesArePairedUnambiguouslyOrNotAtAll
//	without it all is passed on unguarded              internal/cloudpool   TestFaultWithoutExternalIDsAllIsPassedOnUnguarded
//	budgets are read in policy/v1beta1                 internal/cloudpool   TestFaultBudgetsAreReadInAVersionThatIsGone
//	a slash at the end is a way past the checks        internal/cloudpool   TestPathsAreReadAsAnybodyOnTheWayMight
//	                                                   internal/cloudpool   TestNoPathLeadsPastTheChecks
//	                                                   e2e                  TestEveryEndpointAnswersAlikeInFrontOfAServerAndOverANodeGroup
//	the query is dropped                               internal/cloudpool   TestWhatPassesThroughArrivesAsItWasSent
//	an encoded path is decoded                         internal/cloudpool   TestWhatPassesThroughArrivesAsItWasSent
//	hop-by-hop headers are passed on                   internal/cloudpool   TestWhatPassesThroughArrivesAsItWasSent
//	an error is appended to half an answer             internal/cloudpool   TestWhatTheServerDoesWrongIsPassedOnOrSaid
//	redirects are followed                             internal/cloudpool   TestWhatTheServerDoesWrongIsPassedOnOrSaid
//	                                                   internal/cloud/cloudpool/wire
//	                                                                        TestI7MalformedResponseIsNotAnEmptyPool
//	the reason of what is not evictable is inverted    internal/cloudpool   TestWhoIsNotToGoDoesNotAndCountsAllTheSame
//	a failed termination is said to be Kubernetes'     internal/cloudpool   TestATerminationThatDoesNotHappenIsToldOf
//	                                                   e2e                  TestAServerThatFailsAfterTheDrainIsAskedUntilTheMachineIsGone
//	errors of the backend say "backend: backend:"      here                 TestFaultBackendErrorIsReportedTwice
//	a timeout that is a number is a panic              here                 TestFaultNumericTimeoutPanics
//	a % in the backend's words is mangled              internal/cloudpool   TestFailuresAreToldApartUnlessTheOldWayIsAskedFor
//	                                                   e2e                  TestWhatCannotBeDoneIsAnsweredWithItsReasonAndDoesNothing
//	a budget counts in every namespace                 internal/placement   TestPDBsAreAppliedLikeEvictionAPI
//	all terms of a node affinity have to match         internal/placement   TestFaultAllNodeAffinityTermsMustMatch
//	matchFields are unknown                            internal/placement   TestFaultMatchFieldsOfNodeAffinityAreUnknown
//	pods that are over count as load and take room     internal/placement   TestFaultFinishedPodsCountAsLoad
//	400, 404 and 502 of the backend become 500         internal/cloudpool   TestFailuresAreToldApartUnlessTheOldWayIsAskedFor
//	                                                   internal/cloudpool   TestWhatTheServerSaysToARaiseIsPassedOn
//	a success other than 200 is a failure              internal/cloud/cloudpool/wire
//	                                                                        TestFaultSuccessOtherThan200IsAFailure
//	X-Forwarded-For is wrong for IPv6                  internal/cloudpool   TestAnIPv6ClientIsForwardedForAsItIs
//	X-Forwarded-For is empty on its own requests       internal/cloud/cloudpool/wire
//	                                                                        TestFaultOwnRequestsAreForwardedForNobody
//	one judgement for all victims of an update         e2e                  TestI9TwoWorkersDoNotJustifyEachOthersRemoval
//	                                                   e2e                  TestI2ASharedBudgetWithOneAllowedIsNotSpentTwice

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
				t.Errorf("%s.timeout: %s: %v, want it named, and what is wanted", key, text, err)
			}
		}
	}
	c, err := Parse([]byte(`{` + kube + `, "backend": {"url": "http://b", "timeout": null}}`))
	if err != nil || c.Backend.Timeout != 5*time.Minute {
		t.Errorf("null: %s, %v; want the default", c.Backend.Timeout, err)
	}
}
