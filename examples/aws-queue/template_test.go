// Package awsqueue_test checks that the rules of the template and the queue mode fit together.
package awsqueue_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// pattern is the part of an event pattern that the template uses: the values of a field.
type pattern struct {
	Source     []string            `json:"source"`
	DetailType []string            `json:"detail-type"`
	Detail     map[string][]string `json:"detail"`
}

// readRules returns the patterns of all rules that send to the queue, by their name, and the names that the queue accepts.
func readRules(t *testing.T) (rules map[string]pattern, accepted []string) {
	t.Helper()
	raw, err := os.ReadFile("cloudformation.yaml")
	must.NoError(t, err)
	var template struct {
		Resources map[string]struct {
			Type       string
			Properties struct {
				EventPattern   pattern
				Targets        []struct{ Arn map[string][]string }
				PolicyDocument struct {
					Statement []struct {
						Condition struct {
							ArnEquals map[string][]map[string][]string
						}
					}
				}
			}
		}
	}
	must.NoError(t, yaml.Unmarshal(raw, &template))
	rules = map[string]pattern{}
	for name, r := range template.Resources {
		switch r.Type {
		case "AWS::Events::Rule":
			if len(r.Properties.Targets) == 1 && slices.Equal(r.Properties.Targets[0].Arn["Fn::GetAtt"], []string{"Notices", "Arn"}) {
				rules[name] = r.Properties.EventPattern
			}
		case "AWS::SQS::QueuePolicy":
			for _, s := range r.Properties.PolicyDocument.Statement[0].Condition.ArnEquals["aws:SourceArn"] {
				accepted = append(accepted, s["Fn::GetAtt"][0])
			}
		}
	}
	return rules, accepted
}

// events returns one event of EventBridge for each combination of the values in a pattern. The details have all fields that
// AWS documents for one of the events.
func (p pattern) events() []string {
	all := []map[string]string{{}}
	for field, values := range p.Detail {
		var more []map[string]string
		for _, base := range all {
			for _, v := range values {
				fields := maps.Clone(base)
				fields[field] = v
				more = append(more, fields)
			}
		}
		all = more
	}
	var bodies []string
	for _, detailType := range p.DetailType {
		for _, fields := range all {
			detail := map[string]any{
				"instance-id": "i-0123456789abcdef0", "instance-action": "terminate", "EC2InstanceId": "i-0123456789abcdef0", "AutoScalingGroupName": "workers",
				"LifecycleHookName": "drain", "LifecycleActionToken": "87654321-4321-4321-4321-210987654321", "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
				"startTime": "Sat, 05 Jun 2027 15:10:09 GMT", "affectedEntities": []map[string]string{{"entityValue": "i-0123456789abcdef0"}},
				"LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
			}
			if strings.Contains(detailType, "launch") {
				detail["LifecycleTransition"] = "autoscaling:EC2_INSTANCE_LAUNCHING"
			}
			for k, v := range fields {
				detail[k] = v
			}
			body, err := json.Marshal(map[string]any{
				"version": "0", "id": "1", "detail-type": detailType, "source": p.Source[0], "time": "2026-11-27T05:00:00Z", "region": "eu-west-1", "detail": detail,
			})
			if err != nil {
				panic(err)
			}
			bodies = append(bodies, string(body))
		}
	}
	return bodies
}

func TestRulesDeliverEveryKindOfMessage(t *testing.T) {
	rules, accepted := readRules(t)
	delivered := map[queue.Kind]bool{}
	for name, p := range rules {
		if !slices.Contains(accepted, name) {
			t.Errorf("the policy of the queue does not let rule %s send", name)
		}
		for _, body := range p.events() {
			e, err := queue.Parse(body)
			if err != nil || e.Kind == queue.Other {
				t.Errorf("rule %s sends a message that has no use: %v, %s: %s", name, err, e.Reason, body)
				continue
			}
			delivered[e.Kind] = true
			if e.Kind == queue.StateChange {
				delivered[queue.Kind(fmt.Sprint(e.Kind, " ", e.State))] = true
			}
		}
	}
	for _, kind := range append(queue.Kinds(), "state-change stopping", "state-change shutting-down", "state-change running") {
		if !delivered[kind] {
			t.Errorf("no rule delivers %s", kind)
		}
	}
	if len(accepted) != len(rules) {
		t.Errorf("the queue accepts messages of %v, and the rules are %d", accepted, len(rules))
	}
}
