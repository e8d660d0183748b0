package doctor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// lastReadMetric is when the agent last read each source of notices, in seconds since the epoch. 0 means never.
	lastReadMetric     = "slipway_agent_last_read_timestamp_seconds"
	defaultMetricsPort = 9818
)

// newAgentMetricsTasks returns one task per running agent that reads the agent's metrics. An agent that does not answer
// affects only its own node. A missing permission affects all nodes.
func (r *reader) newAgentMetricsTasks() []task {
	var tasks []task
	for _, pods := range r.facts.agentPodsByNode() {
		pod := findRunningPod(pods)
		if pod == nil {
			continue
		}
		tasks = append(tasks, task{metricsReading, func(ctx context.Context) error {
			read, err := r.fetchLastNoticeRead(ctx, pod)
			if apierrors.IsForbidden(err) {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.facts.LastReads[Key{pod.Namespace, pod.Name}] = LastRead{Source: read.Source, At: read.At, Err: err}
			return nil
		}})
	}
	return tasks
}

func (r *reader) fetchLastNoticeRead(ctx context.Context, pod *corev1.Pod) (LastRead, error) {
	raw, err := r.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, findMetricsPort(pod))).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return LastRead{}, err
	}
	return parseLastNoticeRead(raw)
}

// scrapePortAnnotation is the annotation that tells Prometheus the port of a pod's metrics.
const scrapePortAnnotation = "prometheus.io/port"

// findMetricsPort returns the port of a pod's metrics. It prefers the port with the name metrics, then the annotated
// port, then the pod's only port. Otherwise it returns the agent's default port.
func findMetricsPort(pod *corev1.Pod) int32 {
	var all []corev1.ContainerPort
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Ports...)
	}
	for _, p := range all {
		if p.Name == "metrics" {
			return p.ContainerPort
		}
	}
	if port, err := strconv.ParseUint(pod.Annotations[scrapePortAnnotation], 10, 16); err == nil && port > 0 {
		return int32(port)
	}
	if len(all) == 1 {
		return all[0].ContainerPort
	}
	return defaultMetricsPort
}

// parseLastNoticeRead returns the source of notices that an agent has not read for the longest time, from the agent's
// metrics. The zero time means never. Agents of earlier versions name no source.
func parseLastNoticeRead(exposition []byte) (oldest LastRead, err error) {
	found := false
	lines := bufio.NewScanner(bytes.NewReader(exposition))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), lastReadMetric)
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, " ")
		seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		const year9999 = 253402300799
		if err != nil || math.IsNaN(seconds) || seconds < 0 || seconds > year9999 {
			return LastRead{}, fmt.Errorf("metric %s%s is %q: want seconds since the epoch", lastReadMetric, labels, value)
		}
		read := LastRead{Source: strings.TrimSuffix(strings.TrimPrefix(labels, `{source="`), `"}`)}
		if seconds > 0 {
			read.At = time.UnixMilli(int64(seconds * 1000))
		}
		if !found || read.At.Before(oldest.At) {
			oldest = read
		}
		found = true
	}
	if err := lines.Err(); err != nil || found {
		return oldest, err
	}
	if bytes.Contains(exposition, []byte("# TYPE "+lastReadMetric+" ")) {
		return LastRead{}, nil // nothing has been polled yet
	}
	return LastRead{}, fmt.Errorf("metric %s is missing", lastReadMetric)
}
