{{- define "disco.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "disco.fullname" -}}
{{- $name := include "disco.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Takes (list . COMPONENT), as the next ones do. Never changes: selectors cannot. */}}
{{- define "disco.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "disco.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Of an object; more may follow, a map each: (list . COMPONENT MORE ...). The first that says something counts. */}}
{{- define "disco.labels" -}}
{{- $ := index . 0 -}}
{{- $own := dict
      "app.kubernetes.io/version" $.Chart.AppVersion
      "app.kubernetes.io/managed-by" $.Release.Service
      "helm.sh/chart" (printf "%s-%s" $.Chart.Name $.Chart.Version) -}}
{{- $all := merge (include "disco.selector" (list $ (index . 1)) | fromYaml) $own -}}
{{- range slice . 2 }}{{ $all = merge $all (. | default dict) }}{{ end -}}
{{ merge $all $.Values.commonLabels | toYaml }}
{{- end }}

{{/* Likewise: (list . MORE ...), with the key before them, since there may be none. */}}
{{- define "disco.annotations" -}}
{{- $ := index . 0 -}}
{{- $all := dict -}}
{{- range rest . }}{{ $all = merge $all (. | default dict) }}{{ end -}}
{{- with merge $all $.Values.commonAnnotations -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The metadata of a workload: (list . COMPONENT VALUES). */}}
{{- define "disco.workload" -}}
{{- $ := index . 0 -}}
{{- $of := index . 2 -}}
name: {{ include "disco.fullname" $ }}-{{ index . 1 }}
labels: {{- include "disco.labels" (list $ (index . 1) $of.labels) | nindent 2 }}
{{- with include "disco.annotations" (list $ $of.annotations) }}
{{ . }}
{{- end }}
{{- end }}

{{/* The metadata of its pods: (list . COMPONENT VALUES LABELS ANNOTATIONS). */}}
{{- define "disco.podMetadata" -}}
{{- $ := index . 0 -}}
{{- $of := index . 2 -}}
labels: {{- include "disco.labels" (list $ (index . 1) (index . 3) $of.podLabels $.Values.podLabels) | nindent 2 }}
{{- with include "disco.annotations" (list $ (index . 4) $of.podAnnotations $.Values.podAnnotations) }}
{{ . }}
{{- end }}
{{- end }}

{{- define "disco.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Takes (list . COMPONENT): the controller has one of its own where it may change pods. */}}
{{- define "disco.serviceAccount" -}}
{{- $ := index . 0 -}}
{{- if and $.Values.workers.deletionCost (eq (index . 1) "controller") -}}
{{ include "disco.fullname" $ }}-controller
{{- else if $.Values.serviceAccount.create -}}
{{ $.Values.serviceAccount.name | default (include "disco.fullname" $) }}
{{- else -}}
{{ $.Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "disco.controllerHost" -}}
{{ include "disco.fullname" . }}-controller.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Of which workers' names are part. */}}
{{- define "disco.workerDomain" -}}
{{ include "disco.fullname" . }}-worker.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* The Secret with a role's certificate. */}}
{{- define "disco.tlsSecret" -}}
{{- $ := index . 0 -}}
{{- if $.Values.tls.certManager.enabled -}}
{{ include "disco.fullname" $ }}-{{ index . 1 }}-tls
{{- else -}}
{{ index $.Values.tls.existingSecrets (index . 1) | required (printf "tls: expected certManager.enabled, or the name of a Secret in existingSecrets.%s, or insecure where only trusted pods are on the network" (index . 1)) }}
{{- end }}
{{- end }}

{{- define "disco.tokenSecret" -}}
{{ .Values.tokens.existingSecret | default (printf "%s-tokens" (include "disco.fullname" .)) }}
{{- end }}

{{/* Settings as TOML. JSON's scalars and lists are TOML too, and its whole numbers stay whole. */}}
{{- define "disco.toml" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{- define "disco.workerSettings" -}}
{{- $own := dict "controller" (printf "%s:7600" (include "disco.controllerHost" .)) -}}
{{- if .Values.workers.gpus }}{{ $_ := set $own "devices" "cuda" }}{{ end -}}
{{- $settings := merge (dict) .Values.workers.settings $own -}}
{{- if .Values.workers.gpus }}{{ $_ := unset $settings "slots" }}{{ end -}}
{{ include "disco.toml" $settings }}
{{- end }}

{{/* How a pod is to be run, for all of them: (list . COMPONENT). */}}
{{- define "disco.pod" -}}
serviceAccountName: {{ include "disco.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "disco.scheduling" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with index $ $key }}
{{ $key }}: {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes the capabilities to add. */}}
{{- define "disco.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with . }}
  add: {{ toJson . }}
  {{- end }}
{{- end }}

{{- define "disco.scheme" -}}
{{ if .Values.insecure }}http{{ else }}https{{ end }}
{{- end }}

{{/* HTTPS, since the kubelet's gRPC probes speak no TLS, and the same for both daemons. */}}
{{- define "disco.probes" -}}
{{- $scheme := include "disco.scheme" . | upper -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Takes (list . SECONDS ["cordon"]). SIGTERM ends sessions, so before it they may end by themselves. */}}
{{- define "disco.preStop" -}}
preStop:
  exec:
    command: [python3, -c, {{ (index . 0).Files.Get "files/drain.py" | toJson }}, {{ index . 1 | toString | quote }}, "{{ include "disco.scheme" (index . 0) }}://localhost:7601"{{ range rest (rest .) }}, {{ toString . | quote }}{{ end }}]
{{- end }}

{{- define "disco.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Volumes of a role's certificate and of one entry of the tokens: (list . ROLE ENTRY). */}}
{{- define "disco.secrets" -}}
{{- $ := index . 0 -}}
- name: tls
  secret: {secretName: {{ include "disco.tlsSecret" (list $ (index . 1)) }}, defaultMode: 0400}
- name: tokens
  secret:
    secretName: {{ include "disco.tokenSecret" $ }}
    defaultMode: 0400
    items: [{key: {{ index . 2 }}, path: {{ index . 2 }}}]
{{- end }}

{{/* How a pod that is a client reaches the controller. */}}
{{- define "disco.clientEnv" -}}
- name: DISCO_ADDRESS
  value: {{ include "disco.controllerHost" . }}:7600
{{- if not .Values.insecure }}
- name: DISCO_TLS_CA
  value: /etc/disco/tls/ca.crt
{{- if .Values.tls.requireClientCert }}
- name: DISCO_TLS_CERT
  value: /etc/disco/tls/tls.crt
- name: DISCO_TLS_KEY
  value: /etc/disco/tls/tls.key
{{- end }}
- name: DISCO_TOKEN_FILE
  value: /etc/disco/tokens/client
{{- end }}
{{- end }}

{{/* Who is a client, for `from`. */}}
{{- define "disco.clients" -}}
- podSelector:
    matchLabels: { {{- include "disco.fullname" . }}-client: "true"}
{{- with .Values.networkPolicy.clients }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* That a pod may look up names, for `egress`. */}}
{{- define "disco.names" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  to:
    - namespaceSelector: {}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
{{- end }}

{{- define "disco.tls" -}}
tls_cert = "/etc/disco/tls/tls.crt"
tls_key = "/etc/disco/tls/tls.key"
tls_ca = "/etc/disco/tls/ca.crt"
require_client_cert = {{ .Values.tls.requireClientCert }}
{{- end }}
