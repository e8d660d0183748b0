package queueagents

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

)

// maxLookup is the largest number of instances in one request to EC2. A filter has at most 200 values.
const maxLookup = 100

// needsLookup reports whether an instance has to be looked up at EC2 before its messages can be handled. An instance with a
// record was looked up by an earlier process.
func (c *Controller) needsLookup(i *instance, nodes []*node) bool {
	if i.isLookedUp || len(i.messages) == 0 {
		return false
	}
	hasRecord := slices.ContainsFunc(nodes, func(n *node) bool { return len(n.reports) > 0 })
	return c.options.Config.CheckTag && !hasRecord || c.options.Config.UseNodeNameByDNS && len(nodes) == 0
}

// lookUpInstances reads the tags and names of the instances that need it, in one request at a time.
func (c *Controller) lookUpInstances() {
	var ids []string
	for _, i := range c.instances {
		if len(ids) < maxLookup && c.needsLookup(i, c.nodesOf(i.id)) {
			ids = append(ids, i.id)
		}
	}
	if len(ids) == 0 || c.isLookingUp || time.Now().Before(c.nextLookup) || !c.nodesListed {
		return
	}
	c.isLookingUp = true
	c.group.Go(func() {
		found, err := c.describeInstances(ids)
		c.enqueue(func() {
			c.isLookingUp = false
			if err != nil {
				c.nextLookup = time.Now().Add(retryInterval)
				c.log.Error("cannot read the instances of messages, will retry", "instances", ids, "err", err)
				return
			}
			c.recordLookup(ids, found)
		})
	})
}

func (c *Controller) describeInstances(ids []string) (map[string]types.Instance, error) {
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	found := map[string]types.Instance{}
	// A filter, unlike a list of IDs, does not fail for an instance that does not exist.
	input := &ec2.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("instance-id"), Values: ids}}}
	for {
		out, err := c.options.Clients.EC2.DescribeInstances(ctx, input)
		if err != nil {
			return nil, err
		}
		for _, r := range out.Reservations {
			for _, instance := range r.Instances {
				found[aws.ToString(instance.InstanceId)] = instance
			}
		}
		if aws.ToString(out.NextToken) == "" {
			return found, nil
		}
		input.NextToken = out.NextToken
	}
}

func (c *Controller) recordLookup(ids []string, found map[string]types.Instance) {
	for _, id := range ids {
		i := c.instances[id]
		if i == nil {
			continue
		}
		instance := found[id]
		hasTag := slices.ContainsFunc(instance.Tags, func(t types.Tag) bool { return aws.ToString(t.Key) == c.options.Config.ManagedTag })
		i.isLookedUp, i.isForeign = true, c.options.Config.CheckTag && !hasTag
		if c.options.Config.UseNodeNameByDNS {
			i.dnsName = aws.ToString(instance.PrivateDnsName)
		}
		for _, n := range c.nodes {
			if i.dnsName != "" && n.instance == "" && strings.EqualFold(n.Name, i.dnsName) {
				c.updateNode(n.Node)
			}
		}
		c.reconcile(id)
	}
}

