package queueagents

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// maxLookup is the largest number of instances in one request to EC2. A filter has at most 200 values.
const maxLookup = 100

// needsLookup reports whether an instance has to be looked up at EC2 before its messages can be handled. An instance with a
// record was looked up by an earlier process.
func (c *Controller) needsLookup(i *instance, nodes []*node) bool {
	if i.isLookedUp || len(i.messages) == 0 {
		return false
	}
	hasRecord := slices.ContainsFunc(nodes, func(n *node) bool { return len(n.reports) > 0 || len(n.planned) > 0 })
	return c.options.Config.CheckTag && !hasRecord || c.options.Config.UseNodeNameByDNS && len(nodes) == 0
}

// lookUpInstances reads the tags and names of the instances that need it, in one request at a time.
func (c *Controller) lookUpInstances() {
	if c.isLookingUp || time.Now().Before(c.nextLookup) || !c.nodesListed {
		return
	}
	var ids []string
	for _, i := range c.instances {
		if len(ids) < maxLookup && !time.Now().Before(i.nextLookup) && c.needsLookup(i, c.nodesOf(i.id)) {
			ids = append(ids, i.id)
		}
	}
	if len(ids) == 0 {
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
			c.lookUpInstances() // those that have come in the meantime
		})
	})
}

func (c *Controller) describeInstances(ids []string) (map[string]queue.Instance, error) {
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	all, err := c.options.Clients.EC2.DescribeInstances(ctx, ids)
	found := map[string]queue.Instance{}
	for _, i := range all {
		found[i.ID] = i
	}
	return found, err
}

func (c *Controller) recordLookup(ids []string, found map[string]queue.Instance) {
	for _, id := range ids {
		i := c.instances[id]
		if i == nil {
			continue
		}
		instance, isListed := found[id]
		if !isListed && !c.inbox.IsFull() && !c.areMessagesPastGrace(i) {
			i.nextLookup = time.Now().Add(retryInterval) // EC2 may not list a new instance yet
			continue
		}
		i.isLookedUp, i.isForeign = true, c.options.Config.CheckTag && !slices.Contains(instance.TagKeys, c.options.Config.ManagedTag)
		if c.options.Config.UseNodeNameByDNS {
			i.dnsName = instance.PrivateDNSName
		}
		for _, n := range c.nodes {
			if i.dnsName != "" && n.instance == "" && strings.EqualFold(n.Name, i.dnsName) {
				c.updateNode(n.Node)
			}
		}
		c.reconcile(id)
	}
}
