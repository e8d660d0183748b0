package azure

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Resource providers, and the actions that Azure's roles permit on their resources.
const (
	computeNamespace = "Microsoft.Compute"
	aksNamespace     = "Microsoft.ContainerService"

	setRead       = computeNamespace + "/virtualMachineScaleSets/read"
	setWrite      = computeNamespace + "/virtualMachineScaleSets/write"
	setDelete     = computeNamespace + "/virtualMachineScaleSets/delete/action"
	instanceRead  = computeNamespace + "/virtualMachineScaleSets/virtualMachines/read"
	instanceView  = computeNamespace + "/virtualMachineScaleSets/virtualMachines/instanceView/read"
	instanceDel   = computeNamespace + "/virtualMachineScaleSets/virtualMachines/delete"
	vmRead        = computeNamespace + "/virtualMachines/read"
	vmView        = computeNamespace + "/virtualMachines/instanceView/read"
	vmDelete      = computeNamespace + "/virtualMachines/delete"
	instanceEvict = computeNamespace + "/virtualMachineScaleSets/virtualMachines/simulateEviction/action"
	vmEvict       = computeNamespace + "/virtualMachines/simulateEviction/action"
	computeOps    = computeNamespace + "/locations/operations/read"
	poolRead      = aksNamespace + "/managedClusters/agentPools/read"
	poolWrite     = aksNamespace + "/managedClusters/agentPools/write"
	poolDelete    = aksNamespace + "/managedClusters/agentPools/deleteMachines/action"
	machineRead   = aksNamespace + "/managedClusters/agentPools/machines/read"
	aksOps        = aksNamespace + "/locations/operations/read"
)

type armError struct {
	Status     int
	Code       string
	Message    string
	Target     string
	RetryAfter time.Duration
	// flat omits the outer "error", as AKS does.
	flat bool
}

func (e *armError) body() any {
	inner := map[string]any{"code": e.Code, "message": e.Message}
	if e.Target != "" {
		inner["target"] = e.Target
	}
	if e.flat {
		return inner
	}
	return map[string]any{"error": inner}
}

// armResponse is the response of a handler.
type armResponse struct {
	status int
	header http.Header
	body   any // nil means no body
}

func (e *armError) toResponse() armResponse {
	header := http.Header{}
	if e.RetryAfter > 0 {
		header.Set("Retry-After", formatRetryAfter(e.RetryAfter))
	}
	return armResponse{status: e.Status, header: header, body: e.body()}
}

func formatRetryAfter(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}

func newNotFoundError(kind, name string) *armError {
	return &armError{Status: http.StatusNotFound, Code: "ResourceNotFound", Message: fmt.Sprintf(
		"The Resource '%s/%s' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix", kind, name)}
}

func newParameterError(target, format string, args ...any) *armError {
	return &armError{Status: http.StatusBadRequest, Code: "InvalidParameter", Message: fmt.Sprintf(format, args...), Target: target}
}

// armHandler serves one kind of request.
type armHandler func(r *http.Request) (armResponse, *armError)

// route is one kind of request: its pattern below a subscription, and the action that a role must permit.
type route struct {
	pattern string
	action  string
	handle  armHandler
}

func (a *ARM) routes() []route {
	const (
		compute = "/resourceGroups/{group}/providers/Microsoft.Compute"
		set     = compute + "/virtualMachineScaleSets/{set}"
		vm      = compute + "/virtualMachines/{vm}"
		pools   = "/resourceGroups/{group}/providers/Microsoft.ContainerService/managedClusters/{cluster}/agentPools"
	)
	return append([]route{
		{"GET " + compute + "/virtualMachineScaleSets", setRead, a.listScaleSets},
		{"GET " + set, setRead, a.getScaleSet},
		{"PATCH " + set, setWrite, a.patchScaleSet},
		{"POST " + set + "/delete", setDelete, a.deleteInstances},
		{"GET " + set + "/virtualMachines", instanceRead, a.listInstances},
		{"GET " + set + "/virtualMachines/{instance}", instanceRead, a.getInstance},
		{"GET " + set + "/virtualMachines/{instance}/instanceView", instanceView, a.getInstanceView},
		{"DELETE " + set + "/virtualMachines/{instance}", instanceDel, a.deleteInstance},
		{"POST " + set + "/virtualMachines/{instance}/simulateEviction", instanceEvict, a.evictInstance},
		{"POST " + vm + "/simulateEviction", vmEvict, a.evictVM},
		{"GET " + compute + "/virtualMachines", vmRead, a.listVMs},
		{"GET " + vm, vmRead, a.getVM},
		{"GET " + vm + "/instanceView", vmView, a.getVMView},
		{"DELETE " + vm, vmDelete, a.deleteVM},
		{"GET " + pools, poolRead, a.listPools},
		{"GET " + pools + "/{pool}", poolRead, a.getPool},
		{"PUT " + pools + "/{pool}", poolWrite, a.putPool},
		{"POST " + pools + "/{pool}/deleteMachines", poolDelete, a.deletePoolMachines},
		{"GET " + pools + "/{pool}/machines", machineRead, a.listPoolMachines},
		{"GET " + pools + "/{pool}/machines/{machine}", machineRead, a.getPoolMachine},
		{"GET /providers/Microsoft.Compute/locations/{location}/operations/{operation}", computeOps, a.getOperation},
		{"GET /providers/Microsoft.ContainerService/locations/{location}/operations/{operation}", aksOps, a.getOperation},
	}, a.permissionRoutes("/resourceGroups/{group}", set, vm, pools+"/{pool}")...)
}

// Handler serves ARM and the token service. It must be behind TLS, because the SDK otherwise sends no token.
func (a *ARM) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range a.routes() {
		method, path, _ := strings.Cut(r.pattern, " ")
		mux.HandleFunc(method+" /subscriptions/{subscription}"+path, a.wrapHandler(r))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.writeResponse(w, (&armError{Status: http.StatusNotFound, Code: "InvalidResourceType", Message: fmt.Sprintf(
			"The resource type could not be found for %s %s.", r.Method, r.URL.Path)}).toResponse())
	})
	a.registerTokenRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path, r.URL.RawPath = canonicalPath(r.URL.Path), ""
		mux.ServeHTTP(w, r)
	})
}

// canonicalPath changes the fixed segments of an ARM path to the letter case of the routes, because ARM ignores case.
func canonicalPath(path string) string {
	fixed := []string{
		"subscriptions", "resourceGroups", "providers", computeNamespace, aksNamespace, "virtualMachineScaleSets",
		"virtualMachines", "managedClusters", "agentPools", "machines", "locations", "operations", "instanceView", "delete",
		"deleteMachines", "simulateEviction", "permissions",
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if j := slices.IndexFunc(fixed, func(f string) bool { return strings.EqualFold(f, segment) }); j >= 0 && i%2 == 1 {
			segments[i] = fixed[j]
		}
		if i > 0 && i%2 == 0 && segments[i-1] == "providers" {
			for _, namespace := range []string{computeNamespace, aksNamespace, authorizationNamespace} {
				if strings.EqualFold(namespace, segment) {
					segments[i] = namespace
				}
			}
		}
	}
	return strings.Join(segments, "/")
}

// ARMRequest is a request that ARM received.
type ARMRequest struct {
	At     time.Time `json:"at"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Action string    `json:"action"`
	Status int       `json:"status"` // 0 means no response, as for a request that hung
	Body   string    `json:"body,omitempty"`
}

// maxARMBody is the maximum size of a request body in bytes.
const maxARMBody = 1 << 20

// wrapHandler wraps a handler with the common behaviour of ARM.
func (a *ARM) wrapHandler(route route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxARMBody))
		if err != nil {
			return // the client has disconnected, or the body is too long
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		record := a.recordRequest(ARMRequest{At: time.Now(), Method: r.Method, Path: r.URL.Path, Action: route.action, Body: string(body)})
		if refused := a.checkRequestPreconditions(r); refused != nil {
			record(refused.Status)
			a.writeResponse(w, refused.toResponse())
			return
		}
		fault := a.takeRequestFault(route.action, r.URL.Path)
		if fault != nil && !fault.isHandled() {
			record(fault.writeFaultyResponse(w, r, a, armResponse{}))
			return
		}
		answer, failed := route.handle(withStaleVMs(r, fault))
		if failed != nil {
			answer = failed.toResponse()
		}
		if fault != nil && fault.replacesResponse() {
			record(fault.writeFaultyResponse(w, r, a, answer))
			return
		}
		record(answer.status)
		a.writeResponse(w, answer)
	}
}

// recordRequest stores a request, and returns the function that stores its status.
func (a *ARM) recordRequest(request ARMRequest) func(int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, request)
	i := len(a.requests) - 1
	return func(status int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i < len(a.requests) {
			a.requests[i].Status = status
		}
	}
}

// Requests returns the requests so far, without those for tokens.
func (a *ARM) Requests() []ARMRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// checkRequestPreconditions refuses requests that no resource provider would receive.
func (a *ARM) checkRequestPreconditions(r *http.Request) *armError {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a.mu.Lock()
	known := a.tokens[token]
	a.mu.Unlock()
	switch {
	case !bearer:
		return &armError{
			Status: http.StatusUnauthorized, Code: "AuthenticationFailed",
			Message: "Authentication failed. The 'Authorization' header is missing.",
		}
	case !known:
		return &armError{
			Status: http.StatusUnauthorized, Code: "InvalidAuthenticationToken", Message: "The access token is invalid.",
		}
	case r.URL.Query().Get("api-version") == "":
		return &armError{
			Status: http.StatusBadRequest, Code: "MissingApiVersionParameter",
			Message: "The api-version query parameter (?api-version=) is required for all requests.",
		}
	case !strings.EqualFold(r.PathValue("subscription"), a.opts.Subscription):
		return &armError{Status: http.StatusNotFound, Code: "SubscriptionNotFound", Message: fmt.Sprintf(
			"The subscription '%s' could not be found.", r.PathValue("subscription"))}
	}
	if group := r.PathValue("group"); group != "" && !a.hasResourceGroup(group) {
		return &armError{Status: http.StatusNotFound, Code: "ResourceGroupNotFound", Message: fmt.Sprintf(
			"Resource group '%s' could not be found.", group)}
	}
	return nil
}

// hasResourceGroup reports whether a resource group exists: the group of the machines, or of a managed cluster.
func (a *ARM) hasResourceGroup(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.EqualFold(name, a.opts.ResourceGroup) {
		return true
	}
	for _, pool := range a.pools {
		if strings.EqualFold(name, pool.ResourceGroup) {
			return true
		}
	}
	return false
}

// writeFaultyResponse writes a response with ARM's common headers.
func (a *ARM) writeResponse(w http.ResponseWriter, answer armResponse) {
	for name, values := range answer.header {
		w.Header()[name] = values
	}
	w.Header().Set("x-ms-request-id", uuid.NewString())
	w.Header().Set("x-ms-correlation-request-id", uuid.NewString())
	w.Header().Set("x-ms-ratelimit-remaining-subscription-reads", "11999")
	w.Header().Set("Cache-Control", "no-cache")
	if answer.body == nil {
		w.WriteHeader(answer.status)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(answer.status)
	_, _ = w.Write(encodeJSON(answer.body)) // a client that has disconnected cannot be told
}

// newAcceptedResponse returns the response for a started operation: 202 and the address of the operation.
func (a *ARM) newAcceptedResponse(r *http.Request, op *armOperation, status int, body any) armResponse {
	u := url.URL{
		Scheme: "https", Host: r.Host,
		Path: fmt.Sprintf("/subscriptions/%s/providers/%s/locations/%s/operations/%s", a.opts.Subscription, op.namespace,
			a.opts.Location, op.id),
		RawQuery: url.Values{"api-version": {"2017-08-31"}}.Encode(),
	}
	header := http.Header{}
	if a.opts.OperationHeaders != LocationHeader {
		header.Set("Azure-AsyncOperation", u.String())
	}
	u.RawQuery += "&monitor=true"
	if a.opts.OperationHeaders != AsyncOperationHeader {
		header.Set("Location", u.String())
	}
	if a.opts.OperationHeaders == LocationHeader {
		status = http.StatusAccepted // only this status has the header
	}
	a.setRetryAfter(header)
	return armResponse{status: status, header: header, body: body}
}

func (a *ARM) setRetryAfter(header http.Header) {
	if a.opts.RetryAfter >= time.Second {
		header.Set("Retry-After", formatRetryAfter(a.opts.RetryAfter))
	}
}

// getOperation serves both polling styles: Azure-AsyncOperation with 200 and a status, Location with 202 while the
// operation runs.
func (a *ARM) getOperation(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	op := a.ops[r.PathValue("operation")]
	if op == nil {
		return armResponse{}, &armError{
			Status: http.StatusNotFound, Code: "OperationNotFound", Message: "The operation was not found.",
		}
	}
	header := http.Header{}
	body := map[string]any{"name": op.id, "startTime": op.started.Format(time.RFC3339Nano), "status": "InProgress"}
	under := op.ended.IsZero()
	if under {
		a.setRetryAfter(header)
	} else {
		body["status"], body["endTime"] = "Succeeded", op.ended.Format(time.RFC3339Nano)
	}
	if op.err != nil {
		body["status"], body["error"] = "Failed", map[string]any{"code": op.err.Code, "message": op.err.Message}
	}
	if r.URL.Query().Get("monitor") == "" {
		return armResponse{status: http.StatusOK, header: header, body: body}, nil
	}
	switch {
	case under:
		header.Set("Location", "https://"+r.Host+r.URL.RequestURI())
		return armResponse{status: http.StatusAccepted, header: header}, nil
	case op.err != nil:
		return armResponse{}, &armError{Status: http.StatusConflict, Code: op.err.Code, Message: op.err.Message}
	}
	return armResponse{status: http.StatusOK, header: header}, nil
}

// ForgetOperations makes every operation unknown to ARM. Their work continues.
func (a *ARM) ForgetOperations() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.ops)
}

// newPage returns one page of a list, with the link to the next page. The link holds the last entry before that page, so
// that deletions in between skip no entry.
func newPage[T any](a *ARM, r *http.Request, list []T, name func(T) string, entry func(T) any) armResponse {
	query := r.URL.Query()
	if after := query.Get("$skiptoken"); after != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(t T) bool { return compareNatural(name(t), after) <= 0 })
	}
	body := map[string]any{}
	if len(list) > a.opts.PageSize {
		list = list[:a.opts.PageSize]
		query.Set("$skiptoken", name(list[len(list)-1]))
		body["nextLink"] = "https://" + r.Host + r.URL.Path + "?" + query.Encode()
	}
	value := make([]any, 0, len(list))
	for _, t := range list {
		value = append(value, entry(t))
	}
	body["value"] = value
	return armResponse{status: http.StatusOK, body: body}
}

// decodeBody parses the body of a request. Unknown fields are allowed.
func decodeBody(r *http.Request, into any) *armError {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		return &armError{
			Status: http.StatusBadRequest, Code: "InvalidRequestContent",
			Message: "The request content was invalid and could not be deserialized: '" + err.Error() + "'.",
		}
	}
	return nil
}
